"""Dead messages: leased, then requeued or dismissed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import LeaseLost
from airflow_provider_pgqueue.core.json_text import JsonText, to_json
from airflow_provider_pgqueue.core.message import DeadMessage, DeadQueue, Requeued, Row
from airflow_provider_pgqueue.core.statement import Statement, column, list_of, messages_of, only_row, unless_lost

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Chooses dead messages; an omitted field excludes none. A queue name in place of a filter chooses the whole queue.

    - `queue_name`: messages of this queue. Without a queue, a verb that changes messages needs `ids`, `fingerprints` or
      a `reference`.
    - `results`: messages with one of these results.
    - `fingerprints`: messages with one of these causes.
    - `ids`: messages with these ids.
    - `max_requeues`: messages that were requeued fewer times than this.
    - `reference`: messages with this reference.
    - `topic`: messages whose topic matches this pattern.
    - `headers`: messages whose headers contain these.
    - `since`, `until`: messages that died at `since` or later, and before `until`.
    """

    queue_name: str | None = None
    _: KW_ONLY
    results: Collection[str] | None = None
    fingerprints: Collection[str] | None = None
    ids: Collection[int] | None = None
    max_requeues: int | None = None
    reference: str | None = None
    topic: str | None = None
    headers: Mapping[str, Any] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the SQL functions that choose dead messages."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


_ALL: Final = DeadFilter()


def lease_dead(
    which: DeadFilter | str,
    *,
    max_messages: int = 100,
    lease_for: Duration | None = None,
    locked_by: str | None = None,
) -> Statement[list[DeadMessage]]:
    """Lease open dead messages under one new token, oldest first.

    InvalidArgument for a choice that names neither a queue nor `ids`, `fingerprints` or a `reference`.
    """
    return Statement("lease_dead", _chosen(locals()), messages_of(DeadMessage))


def dead_ids(which: DeadFilter | str = _ALL, *, max_messages: int | None = None) -> Statement[list[int]]:
    """Return the ids of open dead messages, leased or not, oldest first."""
    return Statement("dead_ids", _chosen(locals()), column)


def extend_dead(lock_token: UUID, ids: Collection[int], *, lease_for: Duration) -> Statement[list[int]]:
    """Extend leases of dead messages to `lease_for` from now. LeaseLost has the ids of those that were lost."""
    return Statement("extend_dead", locals(), unless_lost(ids))


def release_dead(lock_token: UUID, ids: Collection[int]) -> Statement[list[int]]:
    """Give leased dead messages back without a resolution. LeaseLost has the ids of those that were lost."""
    return Statement("release_dead", locals(), unless_lost(ids))


def requeue(
    lock_token: UUID,
    ids: Collection[int],
    *,
    bodies: Mapping[int, Any] | None = None,
    delay: Duration = timedelta(0),
    resolved_by: str | None = None,
) -> Statement[list[Requeued]]:
    """Publish leased dead messages again under new ids, with a new body where `bodies` has one.

    LeaseLost has the ids of those that were lost; the others are requeued.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": ids,
        "messages": _by_key(bodies),
        "delay": delay,
        "resolved_by": resolved_by,
    }

    def decode(rows: list[Row]) -> list[Requeued]:
        requeued = [Requeued(**row) for row in rows]
        if lost := set(ids) - {one.id for one in requeued}:
            raise LeaseLost(lost)
        return requeued

    return Statement("requeue", arguments, decode)


def dismiss(
    lock_token: UUID, ids: Collection[int], reason: str, *, resolved_by: str | None = None
) -> Statement[list[int]]:
    """Close leased dead messages without publishing them again. LeaseLost has the ids of those that were lost."""
    return Statement("dismiss", locals(), unless_lost(ids))


def requeue_dead(
    which: DeadFilter | str,
    *,
    max_messages: int = 1000,
    bodies: Mapping[int, Any] | None = None,
    delay: Duration = timedelta(0),
    resolved_by: str | None = None,
) -> Statement[list[Requeued]]:
    """Requeue dead messages in one call, with a new body where `bodies` has one for an id.

    Without `results`, `fingerprints` and `ids`, it takes those that ended as `failed` or `lock_expired`. Without a
    queue the rule of `lease_dead` holds.
    """
    arguments = {
        "which": which,
        "max_messages": max_messages,
        "messages": _by_key(bodies),
        "delay": delay,
        "resolved_by": resolved_by,
    }
    return Statement("requeue_dead", _chosen(arguments), _not_none(which, list_of(Requeued)))


def dismiss_dead(
    which: DeadFilter | str,
    reason: str,
    *,
    max_messages: int = 1000,
    resolved_by: str | None = None,
) -> Statement[list[int]]:
    """Dismiss dead messages in one call, and return their ids. Without a queue the rule of `lease_dead` holds."""
    return Statement("dismiss_dead", _chosen(locals()), _not_none(which, column))


def dead_queues(queue_names: Collection[str] | None = None) -> Statement[list[DeadQueue]]:
    """Return the queues that have open dead messages that are not leased."""
    return Statement("dead_queues", locals(), list_of(DeadQueue))


def deaths(queue_name: str, *, holder: str, period: Duration) -> Statement[dict[str, int]]:
    """Return how many messages died within this period in the hands of a holder, as `failed` or `lock_expired`.

    `holder` is how the `locked_by` of its leases begins. What it rejected did not die.
    """
    return Statement("deaths", locals(), lambda rows: {row["result"]: row["number"] for row in rows})


def resolutions(ids: Collection[int]) -> Statement[dict[int, tuple[str, str]]]:
    """Return the resolutions of dead messages: `{id: (resolution, resolved_by)}`, without the open ones."""
    return Statement("resolutions", locals(), _by_id)


def _by_id(rows: list[Row]) -> dict[int, tuple[str, str]]:
    return {row["id"]: (row["resolution"], row["resolved_by"]) for row in rows}


def count_resolutions(resolved_by: str) -> Statement[dict[str, int]]:
    """Count how many messages were `requeued` and `dismissed` under the name `resolved_by`."""
    return Statement("count_resolutions", locals(), only_row)


def requeued_results(resolved_by: str, max_messages: int) -> Statement[dict[str, int]]:
    """Count what became of the first messages that `resolved_by` requeued: `requeued`, `finished`, `died_again`."""
    return Statement("requeued_results", locals(), only_row)


def _by_key(bodies: Mapping[int, Any] | None) -> JsonText | None:
    """Return new bodies as the functions take them; a body that is JSON text already keeps each digit."""
    texts = (f'"{id_}": {to_json(body)}' for id_, body in (bodies or {}).items())
    return JsonText(f"{{{', '.join(texts)}}}") if bodies else None


def _chosen(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with those of its choice of messages."""
    which = arguments["which"]
    others = {name: value for name, value in arguments.items() if name != "which"}
    return others | (which if isinstance(which, DeadFilter) else DeadFilter(which)).arguments()


def _not_none(which: DeadFilter | str, decode: Callable[[list[Row]], list[_T]]) -> Callable[[list[Row]], list[_T]]:
    """Return a decoder that warns if messages were named, and none of them was found."""

    def found(rows: list[Row]) -> list[_T]:
        if not rows and isinstance(which, DeadFilter) and which.ids is not None:
            _log.warning("none of the ids given is an open dead message without a lease")
        return decode(rows)

    return found
