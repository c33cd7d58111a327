"""A repair of dead messages: which ones, with which function, and at what pace."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import (
    LEASE_FOR,
    Rule,
    check,
    duration,
    moment,
    number,
    optional,
    truth,
    whole,
)
from airflow_provider_pgqueue.core.client import require, run
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import awaited, check_call, load_function
from airflow_provider_pgqueue.core.repair.answer import RepairFunction, keep
from airflow_provider_pgqueue.core.repair.canary import wait_for_canary
from airflow_provider_pgqueue.core.repair.share import Outcomes, RepairShare
from airflow_provider_pgqueue.core.repair.validator import Validator, load_validator
from airflow_provider_pgqueue.core.verbs import DeadFilter

Summary = dict[str, Any]
Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
_NEEDED: Final = ("lease_dead", "extend_dead", "release_dead", "requeue", "dismiss", "resolutions", "count_resolutions")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{12}")
_ANY: Final = DeadFilter()
_FEW: Final = 100  # ids of each outcome in the summary
_OUTCOMES: Final = ("requeued", "dismissed", "left", "invalid", "raised", "lost", "held", "resolved", "unknown")
RULES: Final[Mapping[str, Rule]] = {
    "max_messages": optional(whole(1, 10_000_000)),
    "max_requeues": optional(whole(1, 32_767)),
    "max_per_second": optional(number(0.001, 10**9)),
    "canary": whole(0, 10**12),
    "stop_when_failing": number(0.001, 100, "percent"),
    "canary_wait": duration(timedelta(0), timedelta(days=366)),
    "delay": duration(timedelta(0), timedelta(days=366)),
    "dry_run": truth,
}
"""The rules for the arguments that everything has that repairs."""


def is_fingerprint(cause: object) -> bool:
    """Return whether this may be a fingerprint."""
    return isinstance(cause, str) and _FINGERPRINT.fullmatch(cause) is not None


def _cause(value: object) -> str | None:
    return None if is_fingerprint(value) else "Give a fingerprint, such as messages.dead_causes() shows."


_OWN_RULES: Final[Mapping[str, Rule]] = {
    "cause": optional(_cause),
    "since": optional(moment),
    "until": optional(moment),
    "batch_size": whole(1, 10_000),
    "lease_for": LEASE_FOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Repairs dead messages with a function: requeues each, perhaps with a new body, dismisses it, or leaves it dead.

    `function` is a function or `module:function`; without one each is requeued as it is. It gets a DeadMessage (`body`,
    `failure`, `reference`, `attempts`, …) and returns a new body, KEEP, LEAVE or Dismiss(reason). `validator` checks
    each body before it is published: a function or `module:function` that returns what is wrong or None, or the `.json`
    file of a JSON Schema.

    `which` chooses the messages; `cause` is one fingerprint, in place of its fingerprints. Without a queue some of
    `ids`, `cause`, `fingerprints` and `reference` must be given: InvalidArgument. Messages that were requeued
    `max_requeues` times before are left out.

    At most `max_messages` are repaired, oldest first, and at most `max_per_second`.

    With a `canary` this many messages are requeued first, and the others only if fewer than `stop_when_failing`
    percent of the canary died again. The run stops if the canary is not finished within `canary_wait`.

    The archive keeps the name of the run, `repair RUN_ID`, in `resolved_by`. A run that is repeated under the same
    `run_id` continues with what is left.
    """

    function: str | RepairFunction = keep
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    validator: str | Validator | None = None
    which: DeadFilter = _ANY
    cause: str | None = None
    max_messages: int | None = None
    max_per_second: float | None = None
    canary: int = 0
    stop_when_failing: float = 10.0
    canary_wait: Duration = timedelta(minutes=10)
    delay: Duration = timedelta(0)
    batch_size: int = 100
    lease_for: Duration = timedelta(minutes=1)
    dry_run: bool = False

    def __post_init__(self) -> None:
        which = self.which
        check_chosen(which.queue_name, which.ids, self.cause, which.fingerprints, which.reference)
        given = {one.name: getattr(self, one.name) for one in fields(self)} | which.arguments()
        check(given, {**RULES, **_OWN_RULES})

    @property
    def resolved_by(self) -> str:
        """The name of the run in the archive."""
        return f"repair {self.run_id}"

    def run(
        self,
        conn: psycopg.Connection[Any],
        *,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda outcomes: None,
    ) -> Summary:
        """Repair dead messages in this process; return the counts by outcome, with at most a hundred ids of each.

        `requeued` and `dismissed` count all tries of this run. The other messages stay dead: `left` (by the function or
        `max_requeues`), `invalid` (a body that the validator or PostgreSQL refuses), `raised` (the function raised an
        error), `lost` and `held` (another process has them), `resolved` (another process was faster). `unknown` counts
        the `ids` that no dead message has. `stopped` says why the run ended early, or is None.

        A run that is killed and repeated gives each message one resolution: the messages that the killed run had leased
        can be leased again after `lease_for`. A dry run calls the function and changes nothing.

        :param conn: an autocommit connection that nothing else uses meanwhile.
        :param stop: return True to end the run after the current message; the rest of its batch is given back.
        :param on_batch: called after each batch with the number of messages by how they ended so far.
        """

        def work(repair: Repair, ids: Sequence[int]) -> Outcomes:
            return repair.share(conn, stop=stop, on_batch=on_batch).work(ids)

        return repair_by(work, self, lambda: nullcontext(conn), stop)

    def share(
        self,
        conn: psycopg.Connection[Any],
        *,
        tasks: int = 1,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda outcomes: None,
    ) -> RepairShare:
        """Return what repairs the messages of one of so many tasks, which keep the rate together."""
        validator = load_validator(self.validator)
        return RepairShare(
            conn=conn,
            function=awaited(load_function(self.function)),
            validator=validator and awaited(validator),
            which=self.which,
            resolved_by=self.resolved_by,
            lease_for=as_timedelta(self.lease_for),
            batch_size=self.batch_size,
            delay=as_timedelta(self.delay),
            dry_run=self.dry_run,
            max_per_second=self.max_per_second and self.max_per_second / tasks,
            stop=stop,
            on_batch=on_batch,
        )


def check_chosen(queue_name: object, ids: object, cause: object, fingerprints: object, reference: object) -> None:
    """Raise InvalidArgument if neither a queue nor messages are named, as the database does, or a cause twice."""
    if all(name is None for name in (queue_name, ids, cause, fingerprints, reference)):
        raise InvalidArgument(
            "queue_name is None", "Name a queue, or messages by ids, cause, fingerprints or reference."
        )
    if cause is not None and fingerprints is not None:
        raise InvalidArgument("a cause is a fingerprint", "Give either cause or fingerprints.")


def repair_by(
    work: Callable[[Repair, Sequence[int]], Outcomes],
    repair: Repair,
    connect: Connect,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Run a repair whose messages `work` repairs, in this process or in many; return the summary of `Repair.run`."""
    # Load both now: a mistake in them is an error of the run, and not of each task or message.
    function, validator = repair.function, load_validator(repair.validator)
    check_call(load_function(function), "a dead message")
    check_call(validator, "a body")
    with connect() as conn:
        require(conn, _NEEDED, repair.which.queue_name)
    repair = replace(repair, validator=validator)
    if repair.cause is not None:
        repair = replace(repair, cause=None, which=replace(repair.which, fingerprints=[repair.cause]))
    ids = _ids(repair, connect)
    unknown = dict.fromkeys(_unknown(repair, ids, connect), "unknown")
    if repair.dry_run:
        return _summary(repair, ids, (work(repair, ids) if ids else {}) | unknown, {}, stop)
    first = ids[: max(0, repair.canary - _done(repair, connect)["requeued"])]
    found = work(repair, first) if first else {}
    canary: Summary = {}
    if (rest := ids[len(first) :]) and not stop():
        canary = _wait_for_canary(repair, connect, stop) if repair.canary else {}
        found |= {} if "stopped" in canary else work(repair, rest)
    return _summary(repair, ids, found | unknown, _done(repair, connect), stop) | canary


def _wait_for_canary(repair: Repair, connect: Connect, stop: Callable[[], bool]) -> Summary:
    with connect() as conn:
        return wait_for_canary(
            conn,
            repair.resolved_by,
            repair.canary,
            stop_when_failing=repair.stop_when_failing,
            canary_wait=repair.canary_wait,
            stop=stop,
        )


def _ids(repair: Repair, connect: Connect) -> list[int]:
    """Return the ids to repair, oldest first; the limit counts messages that earlier tries of the run resolved."""
    most = repair.max_messages
    if most is not None and (most := most - sum(_done(repair, connect).values())) <= 0:
        return []
    # Messages that the run would leave must not use up the limit: they are the oldest in each run.
    which = replace(repair.which, max_requeues=None) if most is None else repair.which
    with connect() as conn:
        return run(conn, verbs.dead_ids(which, max_messages=most))


def _unknown(repair: Repair, found: Collection[int], connect: Connect) -> set[int]:
    if not (missing := set(repair.which.ids or ()).difference(found)):
        return set()
    with connect() as conn:
        return unknown_ids(conn, missing, repair.which.queue_name)


def unknown_ids(conn: psycopg.Connection[Any], ids: Collection[int], queue_name: str | None = None) -> set[int]:
    """Return the ids that no dead message of the queue has, open or resolved."""
    dead = run(conn, verbs.dead_ids(DeadFilter(queue_name, ids=ids)))
    resolved = run(conn, verbs.resolutions(ids))
    return set(ids).difference(dead, resolved)


def _done(repair: Repair, connect: Connect) -> dict[str, int]:
    """Count what all attempts of this run have done."""
    with connect() as conn:
        return run(conn, verbs.count_resolutions(repair.resolved_by))


def _summary(
    repair: Repair, ids: Sequence[int], found: Outcomes, done: Mapping[str, int], stop: Callable[[], bool]
) -> Summary:
    """Count the outcomes; the database counts the resolutions, because an earlier try of the run may have died."""
    counts = Counter(found.values()) | Counter(done)
    by_outcome = {name: [id_ for id_, outcome in found.items() if outcome == name] for name in _OUTCOMES}
    return {
        **{name: counts[name] for name in _OUTCOMES},
        "ids": {name: sorted(some)[:_FEW] for name, some in by_outcome.items() if some},
        "stopped": "told to stop" if stop() and set(ids) - found.keys() else None,
        "dry_run": repair.dry_run,
    }
