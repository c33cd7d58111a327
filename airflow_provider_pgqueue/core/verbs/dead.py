"""Dead messages: leased, then requeued or dismissed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict, Unpack
from uuid import UUID

from airflow_provider_pgqueue.core.client import (
    ZERO,
    Statement,
    ids_of,
    list_of,
    messages_of,
    only_row,
    to_json,
    unless_lost,
)
from airflow_provider_pgqueue.core.errors import LeaseLost
from airflow_provider_pgqueue.core.message import DeadCause, DeadMessage, DeadQueue, Requeued, Row

_TYPES: Final = {"results": "text[]", "fingerprints": "text[]", "ids": "bigint[]", "headers": "jsonb"}


class DeadFilter(TypedDict, total=False):
    """Which dead messages; what is left out excludes none.

    - `results`: those with one of these results.
    - `fingerprints`: those of one of these causes.
    - `ids`: these.
    - `max_requeues`: those that were requeued fewer times.
    - `reference`: those with this reference.
    - `topic`: those whose topic this pattern matches.
    - `headers`: those whose headers contain these.
    - `since`, `until`: those that died from the one time on and before the other.
    """

    results: Collection[str] | None
    fingerprints: Collection[str] | None
    ids: Collection[int] | None
    max_requeues: int | None
    reference: str | None
    topic: str | None
    headers: Mapping[str, Any] | None
    since: datetime | None
    until: datetime | None


def lease_dead(
    queue_name: str | None = None,
    *,
    max_messages: int = 100,
    lease_for: timedelta | None = None,
    locked_by: str | None = None,
    **which: Unpack[DeadFilter],
) -> Statement[list[DeadMessage]]:
    """Lease dead messages without a remedy under one new token, oldest first.

    Without a queue, those of `ids`, `fingerprints` or a `reference` in all queues; InvalidArgument if none is given.
    """
    return Statement("lease_dead", _prepared(dict(locals())), messages_of(DeadMessage), _TYPES)


def dead_ids(
    queue_name: str | None = None,
    *,
    max_messages: int | None = None,
    **which: Unpack[DeadFilter],
) -> Statement[list[int]]:
    """Return the ids of dead messages without a remedy, leased or not, oldest first."""
    return Statement("dead_ids", _prepared(dict(locals())), ids_of, _TYPES)


def extend_dead(lock_token: UUID, ids: Collection[int], *, lease_for: timedelta) -> Statement[list[int]]:
    """Extend leases of dead messages to `lease_for` from now. LeaseLost has the ids of those that were lost."""
    arguments = {"lock_token": lock_token, "ids": list(ids), "lease_for": lease_for}
    return Statement("extend_dead", arguments, unless_lost(ids), {"ids": "bigint[]"})


def release_dead(lock_token: UUID, ids: Collection[int]) -> Statement[list[int]]:
    """Give leased dead messages back without a remedy. LeaseLost has the ids of those that were lost."""
    arguments = {"lock_token": lock_token, "ids": list(ids)}
    return Statement("release_dead", arguments, unless_lost(ids), {"ids": "bigint[]"})


def requeue(
    lock_token: UUID,
    ids: Collection[int],
    *,
    bodies: Mapping[int, Any] | None = None,
    delay: timedelta = ZERO,
    remedied_by: str | None = None,
) -> Statement[list[Requeued]]:
    """Publish leased dead messages again under new ids, with a new body where `bodies` has one.

    LeaseLost has the ids of those that were lost; the others are requeued.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "messages": to_json({str(id_): body for id_, body in bodies.items()}) if bodies else None,
        "delay": delay,
        "remedied_by": remedied_by,
    }

    def decode(rows: list[Row]) -> list[Requeued]:
        requeued = [Requeued(**row) for row in rows]
        if lost := set(ids) - {one.id for one in requeued}:
            raise LeaseLost(lost)
        return requeued

    return Statement("requeue", arguments, decode, {"ids": "bigint[]", "messages": "jsonb"})


def dismiss(
    lock_token: UUID,
    ids: Collection[int],
    reason: str,
    *,
    remedied_by: str | None = None,
) -> Statement[list[int]]:
    """Close leased dead messages without publishing them again. LeaseLost has the ids of those that were lost."""
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "reason": reason,
        "remedied_by": remedied_by,
    }
    return Statement("dismiss", arguments, unless_lost(ids), {"ids": "bigint[]"})


def requeue_dead(
    queue_name: str | None = None,
    *,
    max_messages: int = 1000,
    delay: timedelta = ZERO,
    remedied_by: str | None = None,
    **which: Unpack[DeadFilter],
) -> Statement[list[Requeued]]:
    """Requeue dead messages in one call.

    Without `results`, `fingerprints` and `ids`, it takes those that ended as `failed` or `lock_expired`. Without a
    queue it is as `lease_dead`.
    """
    return Statement("requeue_dead", _prepared(dict(locals())), list_of(Requeued), _TYPES)


def dismiss_dead(
    queue_name: str | None,
    reason: str,
    *,
    max_messages: int = 1000,
    remedied_by: str | None = None,
    **which: Unpack[DeadFilter],
) -> Statement[list[int]]:
    """Dismiss dead messages in one call, and return their ids. Without a queue it is as `lease_dead`."""
    return Statement("dismiss_dead", _prepared(dict(locals())), ids_of, _TYPES)


def retried_causes(
    queue_name: str | None = None, *, since: datetime | None = None, max_causes: int = 100
) -> Statement[list[Row]]:
    """Return why attempts of messages failed that are not finished yet, most messages first; since a day ago."""
    return Statement("retried_causes", dict(locals()), _named)


def dead_causes(queue_name: str | None = None) -> Statement[list[DeadCause]]:
    """Return the causes of dead messages without a remedy, most frequent first."""
    return Statement("dead_causes", dict(locals()), _causes)


def dead_trend(
    queue_name: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step: timedelta | None = None,
    max_causes: int = 100,
) -> Statement[list[Row]]:
    """Return the causes of death, most deaths first, with the number in each step; by default those of a day."""
    return Statement("dead_trend", dict(locals()), _named)


def _named(rows: list[Row]) -> list[Row]:
    return [{"queue_name": row.pop("cause_queue"), **row} for row in rows]


def dead_queues(
    queue_names: Collection[str] | None = None,
) -> Statement[list[DeadQueue]]:
    """Return the queues that have dead messages without a remedy and without a lease."""
    arguments = {"queue_names": None if queue_names is None else list(queue_names)}
    return Statement("dead_queues", arguments, list_of(DeadQueue), {"queue_names": "text[]"})


def remedies(ids: Collection[int]) -> Statement[dict[int, tuple[str, str]]]:
    """Return the remedies of dead messages: `{id: (remedy, remedied_by)}`, without those that have none."""
    return Statement("remedies", {"ids": list(ids)}, _by_id, {"ids": "bigint[]"})


def _by_id(rows: list[Row]) -> dict[int, tuple[str, str]]:
    return {row["id"]: (row["remedy"], row["remedied_by"]) for row in rows}


def count_remedies(remedied_by: str) -> Statement[dict[str, int]]:
    """Count how many messages were `requeued` and `dismissed` under the name `remedied_by`."""
    return Statement("count_remedies", dict(locals()), only_row)


def requeued_results(remedied_by: str, max_messages: int) -> Statement[dict[str, int]]:
    """Count what became of the first messages that `remedied_by` requeued: `requeued`, `finished`, `died_again`."""
    return Statement("requeued_results", dict(locals()), only_row)


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, and which messages it is about, as the driver takes them."""
    given: dict[str, Any] = arguments.pop("which") | arguments
    for name in ("results", "fingerprints", "ids"):
        if given.get(name) is not None:
            given[name] = list(given[name])
    if given.get("headers") is not None:
        given["headers"] = to_json(given["headers"])
    return given


def _causes(rows: list[Row]) -> list[DeadCause]:
    return [DeadCause(queue_name=row.pop("cause_queue"), **row) for row in rows]
