"""Installs, upgrades and removes the schema from the files of `sql/`, in the order that `install.sql` gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg

from airflow_provider_pgqueue.core.errors import UPGRADE, SchemaTooNew, translate
from airflow_provider_pgqueue.core.query import query, sql_folder

_INCLUDE = re.compile(
    r"^\\ir (?P<path>(?:migrations/(?P<version>\d{4})_(?P<name>\w+)|[\w/]+)\.sql)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Script:
    """One file of `sql/`; `version` is set for a migration, which is applied once."""

    path: str
    text: str
    version: int | None
    name: str | None


@cache
def scripts() -> tuple[Script, ...]:
    """Return the files that `install.sql` includes, in its order."""
    folder, found = sql_folder(), []
    for include in _INCLUDE.finditer((folder / "install.sql").read_text(encoding="utf-8")):
        path, version = include["path"], include["version"]
        text = folder.joinpath(*path.split("/")).read_text(encoding="utf-8")
        found.append(Script(path, text, int(version) if version else None, include["name"]))
    return tuple(found)


@cache
def code_version() -> int:
    """Return the schema version that this package needs."""
    return max(int(file.name[:4]) for file in (sql_folder() / "migrations").iterdir() if file.name.endswith(".sql"))


def migrate(conn: psycopg.Connection[Any]) -> list[int]:
    """Install or upgrade the schema in one transaction, and return the versions that were applied, if any.

    Any number of sessions may migrate at once: a lock of the table of migrations lets one in, and the others find
    nothing to do; InUse after half a minute. A crash leaves the schema as it was. Functions and views are replaced
    every time. Raises SchemaTooNew, and changes nothing, if the schema is newer than this package.
    """
    applied: list[int] = []
    try:
        with conn.transaction():
            found: set[int] = set()
            for script in scripts():
                if script.version in found:
                    continue
                _run(conn, script)
                if script.path == "bootstrap.sql":
                    found = _applied(conn)
                elif script.version is not None:
                    conn.execute(query("record_migration"), [script.version, script.name])
                    applied.append(script.version)
    except psycopg.Error as error:
        raise translate(error) from error
    return applied


def uninstall(conn: psycopg.Connection[Any]) -> None:
    """Remove the schema and all that an installation made, and the group roles with the last database that has one.

    Needs a connection in autocommit: marks beyond the first thousand are removed before, in transactions of their own,
    and if the rest then fails, the next maintenance run creates them again. Raises ForeignSchema, and drops nothing, if
    the schema is not ours, or contains an object of another owner, or such an object depends on it.
    """
    folder = sql_folder()
    rest = (folder / "uninstall.sql").read_text(encoding="utf-8")
    try:
        for first in ("may_uninstall.sql", "drop_marks.sql"):
            conn.execute((folder / first).read_bytes())
            rest = rest.replace(f"\\ir {first}\n", "")
        conn.execute(rest.encode())
    except psycopg.Error as error:
        raise translate(error) from error


def _run(conn: psycopg.Connection[Any], script: Script) -> None:
    """Run one file; an error of its syntax, or in the body of a function, has a note with the file and the line."""
    try:
        conn.execute(script.text.encode())
    except psycopg.Error as error:
        if place := error.diag.statement_position:
            error.add_note(f"sql/{script.path}:{script.text.count(chr(10), 0, int(place) - 1) + 1}")
        raise


def _applied(conn: psycopg.Connection[Any]) -> set[int]:
    versions = {int(row[0]) for row in conn.execute(query("applied_migrations")).fetchall()}
    if max(versions, default=0) > code_version():
        raise SchemaTooNew(f"schema messages has version {max(versions)}, this package knows {code_version()}", UPGRADE)
    return versions
