"""What was done to the queues by hand, and for whom."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, one


def act_for(acting_user: str, request: UUID | None = None) -> Statement[bool]:
    """Name the user for whom the rest of this transaction acts; the audit has that name and the login.

    False if a transaction with this `request` was committed before: then there is nothing to do.
    """
    return Statement("act_for", locals(), one)


def publish_test(queue_name: str, body: Any, *, reference: str | None = None) -> Statement[int]:
    """Publish one message by hand, as an entry of the audit, and return its id."""
    arguments = {"queue_name": queue_name, "message": to_json(body), "reference": reference}
    return Statement("publish_test", arguments, one)


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
