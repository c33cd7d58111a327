"""What fixes a refused privilege: the group role that has it and this login lacks."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.errors import PermissionDenied, translate
from airflow_provider_pgqueue.core.query import query

_REFUSED: Final = re.compile(r"permission denied for (function|view|table|schema) (\w+)")

_GRANT: Final = "GRANT "


def with_role(conn: psycopg.Connection[Any], error: Exception) -> Exception:
    """Return a refusal with the GRANT that fixes it; any other error, and one that has its GRANT, as it is."""
    if isinstance(error, PermissionDenied) and (error.fix or "").startswith(_GRANT):
        return error
    known = translate(error) if isinstance(error, psycopg.Error) else error
    refused = _REFUSED.match(known.problem) if isinstance(known, PermissionDenied) else None
    if refused is None or not isinstance(known, PermissionDenied):
        return error
    fix = grant(conn, *refused.groups())
    return error if fix is None else PermissionDenied(known.problem, fix)


def grant(conn: psycopg.Connection[Any], kind: str, name: str) -> str | None:
    """Return the statement; with other roles that would do as well, but for an admin, who may do everything."""
    try:
        found = conn.execute(query("command/groups_that_may"), {"kind": kind, "name": name}).fetchall()
    except psycopg.Error:
        return None
    if not found:
        return None
    (group, login), *further = found
    others = [one for one, _ in further if one != "messages_admin"]
    return f"{_GRANT}{group} TO {login}" + (f", or {', '.join(others)}" if others else "")
