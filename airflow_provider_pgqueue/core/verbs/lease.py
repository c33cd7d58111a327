"""Leasing messages, and what ends a lease: archive or release."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Message, Row
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


def deaths(queue_name: str, *, holder: str, period: Duration) -> Statement[dict[str, int]]:
    """Return how many messages died within this period in the hands of a holder, as `failed` or `lock_expired`.

    `holder` is how the `locked_by` of its leases begins. What it rejected did not die.
    """
    return Statement("deaths", locals(), lambda rows: {row["result"]: row["number"] for row in rows})


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


def workers(queue_name: str | None = None, *, period: Duration | None = None) -> Statement[list[Row]]:
    """Return who leases now or finished something within `period`, those with most leases first."""
    return Statement("workers", locals(), _workers)


def _workers(rows: list[Row]) -> list[Row]:
    return [{"queue_name": row.pop("worker_queue"), **row} for row in rows]


def consume(queue_name: str, *, max_messages: int = 1, handled_by: str | None = None) -> Statement[list[Message]]:
    """Take messages and archive them as success at once: exactly once, if the effect is in the same transaction."""
    return Statement("consume", locals(), messages_of(Message))


def once(consumer: str, message_id: int) -> Statement[bool]:
    """Return True the first time for a consumer and message, and False once that has committed.

    Call it in the transaction of the effect, to let the effect happen once however often the message is delivered.
    """
    return Statement("once", locals(), one)
