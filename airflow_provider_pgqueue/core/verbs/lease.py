"""Leasing messages, and what ends a lease: archive or release."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success, outcomes_as_json, storable
from airflow_provider_pgqueue.core.statement import Statement, column, messages_of, one, unless_lost


def lease(
    queue_name: str,
    *,
    max_messages: int = 1,
    lease_for: Duration | None = None,
    locked_by: str | None = None,
) -> Statement[list[Message]]:
    """Lease up to `max_messages` ready messages under one new token: highest priority first, then oldest.

    Raises QueuePaused for a paused queue.
    """
    # A crash of the server that undoes the lease makes the messages ready again: nothing is lost.
    return Statement("lease", locals(), messages_of(Message), durable=False)


def abandoned(lock_token: UUID, ids: Collection[int]) -> Statement[list[int]]:
    """Return the ids of leased messages whose attempt before ended without a result: their lease or consumer ended.

    One of them may be the reason.
    """
    return Statement("abandoned", locals(), column)


def extend(lock_token: UUID, ids: Collection[int], *, lease_for: Duration) -> Statement[list[int]]:
    """Extend leases to `lease_for` from now. LeaseLost has the ids of those that were lost; the others are extended."""
    return Statement("extend", locals(), unless_lost(ids), durable=False)


def archive(
    lock_token: UUID,
    ids: Collection[int],
    *,
    result: str = "success",
    details: str | None = None,
    handled_by: str | None = None,
    outcomes: Mapping[int, Success | Rejected | Failed] | None = None,
    output: Any = None,
    failure: Mapping[str, Any] | None = None,
) -> Statement[list[int]]:
    """Archive leased messages with a result; `outcomes` gives single ids an outcome of their own.

    LeaseLost has the ids of those that were lost; the others are archived.
    """
    arguments = locals() | {
        # Ids go as one text and return as one row: converting them one by one takes longer than the call.
        "ids": f"{{{','.join(map(str, ids))}}}",
        "details": _text(details),
        "outcomes": outcomes_as_json(outcomes) if outcomes else None,
        "output": None if output is None else to_json(output),
    }
    return Statement("archive", arguments, unless_lost(ids, one), columns="pg_catalog.array_agg(found)")


def _text(details: str | None) -> str | None:
    return storable(details) if isinstance(details, str) else details


def release(
    lock_token: UUID,
    ids: Collection[int],
    *,
    delay: Duration = timedelta(0),
    count_attempt: bool = True,
    details: str | None = None,
    failure: Mapping[str, Any] | None = None,
    back_off: bool = False,
) -> Statement[list[int]]:
    """Give leased messages back: at once, after `delay`, or with `back_off` after the back-off of the queue.

    The queue keeps the error of `failure`, or else `details`, as the last error of a message that waits for its next
    attempt. A message whose last attempt this was is archived as `failed` with details and failure.
    With `count_attempt=False` the delivery does not count as an attempt.

    LeaseLost has the ids of those that were lost; the others are released.
    """
    return Statement("release", locals() | {"details": _text(details)}, unless_lost(ids))


def consume(queue_name: str, *, max_messages: int = 1, handled_by: str | None = None) -> Statement[list[Message]]:
    """Take messages and archive them as success at once: exactly once, if the effect is in the same transaction."""
    return Statement("consume", locals(), messages_of(Message))


def once(consumer: str, message_id: int) -> Statement[bool]:
    """Return True the first time for a consumer and message, and False once that has committed.

    Call it in the transaction of the effect, to let the effect happen once however often the message is delivered.
    """
    return Statement("once", locals(), one)
