"""What people do by hand, and the record of it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, column, one


def act_for(acting_user: str, request: UUID | None = None) -> Statement[bool]:
    """Name the user for whom the rest of this transaction acts; the audit has that name and the login.

    False if a transaction with this `request` was committed before: then there is nothing to do.
    """
    return Statement("act_for", locals(), one)


def publish_test(queue_name: str, body: Any, *, reference: str | None = None) -> Statement[int]:
    """Publish one message by hand, as an entry of the audit, and return its id."""
    arguments = {"queue_name": queue_name, "message": to_json(body), "reference": reference}
    return Statement("publish_test", arguments, one)


def release_messages(
    queue_name: str, ids: Collection[int] | None = None, *, holder: str | None = None
) -> Statement[list[int]]:
    """End the leases of some messages, or of a consumer that is gone, and return the ids of those that were leased.

    The attempt counts: one of the messages may be why the consumer is gone. `holder` is its `locked_by`, or the
    beginning of that up to a slash; to find its leases, this reads the whole queue. A consumer that still works under
    such a lease has lost it.
    """
    return Statement("release_messages", locals(), column)


def cancel(queue_name: str, ids: Collection[int], *, reason: str | None = None) -> Statement[list[int]]:
    """Archive messages as `cancelled`, whether they wait or are leased, and return the ids of those.

    A consumer that works on one has lost it, and learns so when it extends or archives the message. A cancelled
    message is not dead, the next of its group follows, and its dedup key can be used again.
    """
    return Statement("cancel", locals(), column)


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
