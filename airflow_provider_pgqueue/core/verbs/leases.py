"""Leasing messages, and finishing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.body import to_json
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success
from airflow_provider_pgqueue.core.verbs.statement import (
    ZERO,
    Statement,
    list_of,
    one,
    optional_json,
    unless_lost,
)


def lease(
    queue_name: str,
    *,
    max_messages: int = 1,
    lease_for: timedelta | None = None,
    locked_by: str | None = None,
    topic: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Statement[list[Message]]:
    """Take up to `max_messages` ready messages under one fresh token; highest priority first, then oldest.

    With a `topic` pattern or with `headers` only those that match: whose topic does, whose headers contain these.
    """
    arguments = dict(locals()) | {"headers": optional_json(headers)}
    return Statement("lease", arguments, list_of(Message.from_row), {"headers": "jsonb"}, durable=False)


def extend(lock_token: UUID, ids: Collection[int], *, lease_for: timedelta) -> Statement[list[int]]:
    """Make leases last `lease_for` from now. LeaseLost names those that were lost; the others are extended."""
    arguments = {"lock_token": lock_token, "ids": list(ids), "lease_for": lease_for}
    return Statement("extend", arguments, unless_lost(ids), {"ids": "bigint[]"}, durable=False)


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
    """Finish leased messages in one statement; `outcomes` overrides the rest for single ids.

    LeaseLost names those that were lost; the others are archived.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "result": result,
        "details": details,
        "handled_by": handled_by,
        "outcomes": to_json({str(id_): _as_result(outcome) for id_, outcome in outcomes.items()}) if outcomes else None,
        "output": None if output is None else to_json(output),
        "failure": optional_json(failure),
    }
    types = {"ids": "bigint[]", "outcomes": "jsonb", "output": "jsonb", "failure": "jsonb"}
    return Statement("archive", arguments, unless_lost(ids), types)


def _as_result(outcome: Success | Rejected | Failed) -> dict[str, Any]:
    match outcome:
        case Success(details, output):
            said = {"result": "success", "details": details, "output": output}
        case Rejected(reason):
            said = {"result": "rejected", "details": reason}
        case Failed(details, failure):
            said = {"result": "failed", "details": details, "failure": failure}
    return {key: value for key, value in said.items() if value is not None}


def release(
    lock_token: UUID,
    ids: Collection[int],
    *,
    delay: timedelta = ZERO,
    count_attempt: bool = True,
    details: str | None = None,
    failure: Mapping[str, Any] | None = None,
    back_off: bool = False,
) -> Statement[list[int]]:
    """Give leased messages back, now, after `delay`, or after the back-off of the queue.

    A counted last attempt is archived as `failed` with details and failure; without `count_attempt` this is "come back
    later", any number of times.

    LeaseLost names those that were lost; the others are released.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "delay": delay,
        "count_attempt": count_attempt,
        "details": details,
        "failure": optional_json(failure),
        "back_off": back_off or None,
    }
    return Statement("release", arguments, unless_lost(ids), {"ids": "bigint[]", "failure": "jsonb"})


def consume(queue_name: str, *, max_messages: int = 1, handled_by: str | None = None) -> Statement[list[Message]]:
    """Take messages out and archive them as success in the caller's transaction."""
    return Statement("consume", dict(locals()), list_of(Message.from_row))


def once(consumer: str, message_id: int) -> Statement[bool]:
    """Say whether this is the first time for a consumer and message, in the transaction of the effect."""
    return Statement("once", dict(locals()), one)
