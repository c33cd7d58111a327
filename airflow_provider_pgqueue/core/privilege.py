"""The fix for a refused privilege: the group role or grant that the login lacks, by the comment of the function."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core.query import query, sql_folder

_REFUSED: Final = re.compile(r"permission denied for (function|view|table|schema) (\w+)")
_MAY_CALL: Final = re.compile(
    r"^COMMENT ON FUNCTION messages\.(\w+).*?^    ' \[(?:for: )?([a-z, ]+)\]';$", re.MULTILINE | re.DOTALL
)
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
# The roles with the fewest privileges come first.
_GROUPS: Final = ("publisher", "observer", "consumer", "maintenance", "reader", "pipeline", "admin")
_VIEWS: Final = ("queue_overview", "message_overview", "dispatch_overview", "archive_overview")
_TABLES: Final = {"message": "reader", "message_archive": "reader"} | dict.fromkeys(_VIEWS, "observer")
_OF_A_QUEUE: Final = {"publisher": "publish", "consumer": "consume", "observer": "observe"}


@cache
def _by_function() -> Mapping[str, str]:
    """Return by function the group role with the fewest privileges that may call it, without its prefix."""
    known: dict[str, str] = {}
    for chapter in (sql_folder() / "chapters").iterdir():
        for name, roles in _MAY_CALL.findall(chapter.read_text(encoding="utf-8")):
            # Any role will do.
            groups = [one for one in _GROUPS if one in roles.split(", ")] or ["observer"] * (roles == "every role")
            known |= {name: groups[0]} if groups else {}
    return known


def lacking(problem: str, wants: str | None = None) -> str | None:
    """Return the group role that would not have been refused; None if no group role has the privilege.

    :param wants: the group role for what was called; the server does not name the function to a login that may not use
        the schema.
    """
    refused = _REFUSED.search(problem)
    kind, name = refused.groups() if refused else ("", "")
    if kind == "schema":
        return wants if name == "messages" else None
    return (_by_function() if kind == "function" else _TABLES).get(name)


def fix_of(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    problem: str,
    *,
    verb: str = "",
    wants: str | None = None,
    queue_name: Any = None,
) -> str | None:
    """Return the statement with which an admin gives the login of a connection what it was refused, if there is one.

    The server is asked whether the login is limited to its queues, or has the role and does not inherit it; not over
    an async connection, and not in a transaction that has failed, in which it answers nothing.
    """
    refused = _REFUSED.search(problem)
    kind, name = refused.groups() if refused else ("", "")
    function = name if kind == "function" else verb or None
    group = lacking(problem, _by_function().get(verb, wants))
    if group is None:
        return None
    if isinstance(conn, psycopg.Connection) and conn.info.transaction_status in (
        TransactionStatus.IDLE,
        TransactionStatus.INTRANS,
    ):
        given = {
            "group": group,
            "queue_name": queue_name if isinstance(queue_name, str) else None,
            "privilege": _OF_A_QUEUE.get(group) if isinstance(queue_name, str) else None,
            "function": function,
            "relation": name if kind in ("table", "view") else None,
        }
        try:
            with conn.cursor(row_factory=tuple_row) as cursor:
                row = cursor.execute(query("missing_right"), given).fetchone()
        except psycopg.Error:
            row = None
        if row is not None:
            return str(row[0])
    login = conn.info.user
    return f"GRANT messages_{group} TO " + (login if _PLAIN.fullmatch(login) else '"' + login.replace('"', '""') + '"')
