"""What was done to the queues by hand, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, one


def audited(
    acting_user: str, verb: str, arguments: Mapping[str, Any], *, request: UUID | None = None
) -> Statement[list[Any] | None]:
    """Call a verb for a user, record it in the audit under that name, and return the rows of the verb.

    `arguments` are those of the SQL function: durations as texts, bodies as they are. The login of the session must be
    allowed to call the verb; the audit has both names. A `request` is done once: a second call with it does nothing and
    returns None.
    """
    return Statement("audited", locals() | {"arguments": _object(arguments)}, one)


def _object(arguments: Mapping[str, Any]) -> str:
    # One by one, because a body may be a text of JSON whose numbers must lose no digit.
    return f"{{{', '.join(f'{to_json(name)}: {to_json(value)}' for name, value in arguments.items())}}}"


def audit_log(
    queue_name: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    max_entries: int = 100,
    by_user: str | None = None,
    verb: str | None = None,
) -> Statement[list[Row]]:
    """Return what was done by hand to a queue or to all, newest first; `by_user` is a user or a login."""
    return Statement("audit_log", locals(), list)
