"""plpgsql_check, which finds what is wrong in the statements of a function without calling it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import psycopg

from tools.binaries import unpacked
from tools.programs import Binaries

_SCHEMA: Final = "plpgsql_check"


def find(binaries: Binaries) -> Path | None:
    """Return the library for this server, from Debian's package if that is allowed and needed; None without it."""
    if binaries.kind != "debian":
        return None
    return next(unpacked(f"postgresql-{binaries.version}-plpgsql-check").rglob("plpgsql_check.so"), None)


def load(conn: psycopg.Connection[Any], library: Path, place: Path) -> None:
    """Make its functions in a schema of their own: a server installs extensions only from its own folder.

    :param place: a folder that the server's user can read, where the library is copied.
    """
    copied = shutil.copy(library, place)
    (script,) = library.parents[4].rglob("plpgsql_check--*.sql")
    text = "".join(line for line in script.read_text().splitlines(keepends=True) if not line.startswith("\\"))
    with conn.transaction():
        conn.execute(f"CREATE SCHEMA {_SCHEMA}; SET LOCAL search_path = {_SCHEMA}, pg_catalog".encode())
        text = text.replace("MODULE_PATHNAME", str(Path(copied).with_suffix(""))).replace("@extschema@", _SCHEMA)
        conn.execute(text.encode())
