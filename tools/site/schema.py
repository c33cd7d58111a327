"""Every public function, view and type of the schema as Markdown, from the catalog of a new installation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from tools.chapters import chapters
from tools.chapters import functions as functions_of_chapters
from tools.golden import new_installation

_NAME: Final = re.compile(r"(?<![\w`])(?!pg_cron)(?:messages\.)?\w*_\w+(?:\(\))?(?![\w`])")

_ASKED: Final = """
    act_for archive_checksums archive_log_end begin_run
    closed_archive_partitions closed_queues count_resolutions drop_archive_partition drop_stage expect_cron
    finish_run granted_queues latest_migration lease_policy lock_export scan_next
    publish_staged purge_cron_history queue_sparklines
    requeued_results run_archived run_backlog run_holder
    run_summary session_is_limited split_archive_log stage_publish
"""
ASKED_BY_THE_PACKAGE: Final = frozenset(_ASKED.split())
"""Functions that a role may call so that this package and other functions can; users have no need of them."""

# A function that a group role may call is public; only the owner may call an internal function.
_FUNCTIONS: Final = r"""
SELECT p.proname AS name, pg_get_function_result(p.oid) AS returns,
       regexp_replace(obj_description(p.oid, 'pg_proc'), ' \[[a-z:, ]+\]$', '') AS comment,
       ARRAY(SELECT format('%s %s%s', a.name, format_type(a.type, NULL),
                           ' DEFAULT ' || regexp_replace(pg_get_function_arg_default(p.oid, a.place::int),
                                                         '::[a-z ]+(\[\])?$', ''))
               FROM unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes)
                    WITH ORDINALITY AS a (name, type, mode, place)
              WHERE coalesce(a.mode, 'i') IN ('i', 'v') AND a.type IS NOT NULL ORDER BY a.place) AS arguments,
       ARRAY(SELECT r.rolname::text FROM aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
              WHERE a.grantee <> p.proowner ORDER BY r.rolname <> 'messages_admin', r.rolname) AS roles
  FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
"""
_RELATIONS: Final = """
SELECT c.relname AS name, c.relkind = 'v' AS is_view, coalesce(obj_description(c.oid, 'pg_class'), '') AS comment,
       ARRAY(SELECT format('`%s` %s', a.attname, format_type(a.atttypid, a.atttypmod))
               FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum) AS columns
  FROM pg_class c
 WHERE c.relnamespace = 'messages'::regnamespace
   AND (c.relkind = 'c' OR c.relkind = 'v' AND has_table_privilege('messages_observer', c.oid, 'SELECT'))
 ORDER BY c.relkind, c.relname
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the schema; `roles` may call it."""

    name: str
    arguments: list[str]
    returns: str
    comment: str
    roles: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A view, or the type of the rows that functions return."""

    name: str
    is_view: bool
    comment: str
    columns: list[str]


def reference() -> str:
    """Install the schema in a server of its own and return its reference."""
    with new_installation("site") as conn:
        return describe(conn)


def describe(conn: psycopg.Connection[Any]) -> str:
    """Return the reference of the schema in this database: the verbs first, by the chapters of `sql/install.sql`."""
    public = {one.name: one for one in functions(conn) if one.name not in ASKED_BY_THE_PACKAGE}
    sections = []
    for chapter in chapters():
        names = [name for name, one in functions_of_chapters().items() if one.chapter == chapter.name]
        if known := [public[name] for name in names if name in public]:
            sections += [f"## {chapter.title}", *(_function(one, f"sql/chapters/{chapter.name}.sql") for one in known)]
    with conn.cursor(row_factory=class_row(Relation)) as cursor:
        relations = cursor.execute(_RELATIONS.encode()).fetchall()
    sections += ["## Types of rows", *(_relation(one) for one in relations if not one.is_view)]
    sections += ["## Views", *(_relation(one) for one in relations if one.is_view)]
    return "\n\n".join(sections) + "\n"


def functions(conn: psycopg.Connection[Any]) -> list[Function]:
    """Return the functions that some role may call."""
    with conn.cursor(row_factory=class_row(Function)) as cursor:
        return [one for one in cursor.execute(_FUNCTIONS.encode()) if one.roles]


def _function(one: Function, file: str) -> str:
    source = f"[`{file}`](../../{file})"
    by = ", ".join(f"`{role}`" for role in one.roles)
    signature = f"```sql\n{_signature(one)}\n```"
    return "\n\n".join([f"### {one.name}", signature, _prose(one.comment), f"May be called by {by}. {source}"])


def _signature(one: Function) -> str:
    arguments = [_short(argument) for argument in one.arguments]
    line = f"messages.{one.name}({', '.join(arguments)})"
    if len(line) > 100:
        line = f"messages.{one.name}(\n    " + ",\n    ".join(arguments) + ")"
    returns = _short(one.returns)
    if returns.startswith("TABLE(") and len(returns) > 100:
        returns = "TABLE(\n    " + returns.removeprefix("TABLE(").replace(", ", ",\n    ")
    return f"{line}\n    RETURNS {returns}" if "\n" not in line else f"{line}\nRETURNS {returns}"


def _relation(one: Relation) -> str:
    return "\n\n".join(filter(None, [f"### {one.name}", _prose(one.comment), _short(", ".join(one.columns)) + "."]))


def _short(types: str) -> str:
    return types.replace("timestamp with time zone", "timestamptz")


def _prose(comment: str) -> str:
    """Return a comment with its names as code, so that Markdown takes no underscore for emphasis."""
    return _NAME.sub(lambda name: f"`{name[0]}`", comment)


def headings(markdown: str) -> Iterator[str]:
    """Yield the names that have a place in the reference."""
    yield from re.findall(r"^### (\w+)$", markdown, re.M)
