"""Turns by key, a rate and cancel, compared with peers that promise the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from statistics import median
from typing import Any, Final

from benchmarks.anchors.cancel import CANCELS, cancelled
from benchmarks.anchors.workers import Handled, Workers, turns
from benchmarks.bench import Bench, case
from benchmarks.peers.dbos import DBOS_PEER
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.peers.procrastinate import PROCRASTINATE
from benchmarks.report import Line, Row

_GROUP: Final = "anchors"
_KEYS: Final = " FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS given (key, n) ORDER BY n"
_PUBLISH: Final = (
    "INSERT INTO messages.message (queue_name, message, {column})"
    " SELECT 'bench', jsonb_build_object('key', key), {value}" + _KEYS
)
_PLAIN: Final = _PUBLISH.format(column="reference", value="key")
_PROCRASTINATE: Final = (
    "INSERT INTO procrastinate_jobs (queue_name, task_name, args, lock)"
    " SELECT 'bench', 'bench', jsonb_build_object('key', key), {lock}" + _KEYS
)
_WORKFLOWS: Final = (
    "SELECT dbos.enqueue_workflow('bench', 'bench', ARRAY[to_json(key)], queue_partition_key => {key})" + _KEYS
)
# The default is a second, in which a process starts no more than it may run at once.
_OFTEN: Final = {"polling_interval_sec": 0.05}
_LARGE: Final = "large"
_SMALL: Final = [str(number) for number in range(100)]
_EACH_SECOND: Final = 50
# Eight handlers at the same time: each of ours is a process, those of the peers run in two.
_OURS_OF_EIGHT: Final = {"processes": 8, "options": {"at_once": 1, "seconds": 0.005}}
_EIGHT: Final = {"processes": 2, "options": {"at_once": 4, "seconds": 0.005}}


def _named(peer: str, promise: str) -> str:
    return f"{peer} {version(peer.lower())}, {promise}"


def _dbos(
    publish: str,
    limits: Mapping[str, Any] | None = None,
    *,
    processes: int = 4,
    options: Mapping[str, Any] | None = None,
) -> Workers:
    # A hundred at once is faster than ten.
    options = {"at_once": 100} | dict(options or {}) | {"queue": _OFTEN | dict(limits or {})}
    return Workers(DBOS_PEER, publish, processes=processes, options=options)


def _row(
    name: str,
    other: str,
    samples: tuple[Sequence[Handled], Sequence[Handled]],
    of: Callable[[Handled], float],
    unit: str = "msg/s",
    note: str = "",
) -> Row:
    ours, theirs = ([of(one) for one in each] for each in samples)
    return Row(name, other, ours, theirs, unit, at_least=unit == "msg/s", note=note)


@case("anchor-fair", "100 small keys behind a large one: until their last message", quick=False, group=_GROUP)
def fair(bench: Bench) -> list[Line]:
    large = [_LARGE] * 5_000
    partitions = _dbos(_WORKFLOWS.format(key="key"), {"partition_concurrency": 1})
    contestants = {
        "pgqueue": Workers(
            PGQUEUE,
            _PUBLISH.format(column="headers", value="jsonb_build_object('fair_key', key)"),
            "SELECT messages.alter_queue('bench', fair_by => 'topic')",
        ),
        "procrastinate": Workers(PROCRASTINATE, _PROCRASTINATE.format(lock="NULL")),
        "dbos": replace(partitions, waiting=f"{DBOS_PEER.count} AND queue_partition_key <> '{_LARGE}'"),
    }
    handled = turns(bench, contestants, large + _SMALL * 10)
    until = {name: [one.until_last_of(_SMALL) for one in each] for name, each in handled.items()}
    lines: list[Line] = []
    for name, other in (
        ("procrastinate", _named("procrastinate", "first in, first out")),
        ("dbos", _named("DBOS", "partition_concurrency=1")),
    ):
        samples = until["pgqueue"], until[name]
        lines += [
            _row("anchor-fair, handled until then", other, samples, lambda one: len(one.entries), "messages"),
            _row("anchor-fair, time until then", other, samples, lambda one: one.seconds, "s"),
        ]
    return lines


@case("anchor-rate", "50 messages a second by 8 handlers: in the busiest second", quick=False, group=_GROUP)
def rate(bench: Bench) -> list[Line]:
    limit = f"SELECT messages.alter_queue('bench', rate_limit => {_EACH_SECOND})"
    contestants = {
        "pgqueue": Workers(PGQUEUE, _PLAIN, limit, **_OURS_OF_EIGHT),
        "dbos": _dbos(_WORKFLOWS.format(key="NULL"), {"limiter": {"limit": _EACH_SECOND, "period": 1.0}}, **_EIGHT),
    }
    handled = turns(bench, contestants, ["any"] * _EACH_SECOND * 10)
    samples, other = (handled["pgqueue"], handled["dbos"]), _named("DBOS", "limiter")
    allowed = f"{_EACH_SECOND} are allowed"
    return [
        _row("anchor-rate, busiest second", other, samples, lambda one: one.busiest_second, "messages", allowed),
        _row("anchor-rate", other, samples, lambda one: one.rate),
        _row("anchor-rate, CPU", other, samples, lambda one: one.cpu / len(one.entries) * 1000, "ms/msg"),
    ]


@case("anchor-at-once", "at most 1 and 2 of each of 4 keys at once, 8 handlers of 5 ms", quick=False, group=_GROUP)
def at_once(bench: Bench) -> list[Line]:
    grouped, keyed = _PUBLISH.format(column="group_key", value="key"), _WORKFLOWS.format(key="key")
    two = "SELECT messages.alter_queue('bench', max_leased_per_group => 2)"
    contestants = {
        "pgqueue": Workers(PGQUEUE, _PLAIN, **_OURS_OF_EIGHT),
        "pgqueue_1": Workers(PGQUEUE, grouped, **_OURS_OF_EIGHT),
        "pgqueue_2": Workers(PGQUEUE, grouped, two, **_OURS_OF_EIGHT),
        "procrastinate": Workers(PROCRASTINATE, _PROCRASTINATE.format(lock="NULL"), **_EIGHT),
        "procrastinate_1": Workers(PROCRASTINATE, _PROCRASTINATE.format(lock="key"), **_EIGHT),
        "dbos": _dbos(_WORKFLOWS.format(key="NULL"), **_EIGHT),
        "dbos_1": _dbos(keyed, {"partition_concurrency": 1}, **_EIGHT),
        "dbos_2": _dbos(keyed, {"partition_concurrency": 2}, **_EIGHT),
    }
    handled = turns(bench, contestants, _SMALL[:4] * 100)
    lines: list[Line] = []
    for name, limit, other in (
        ("procrastinate", 1, _named("procrastinate", "lock")),
        ("dbos", 1, _named("DBOS", "partition_concurrency=1")),
        ("dbos", 2, _named("DBOS", "partition_concurrency=2")),
    ):
        ours, theirs = handled[f"pgqueue_{limit}"], handled[f"{name}_{limit}"]
        most = [max(one.most_at_once for one in each) for each in (ours, theirs)]
        kept = _rate(ours) / _rate(handled["pgqueue"]), _rate(theirs) / _rate(handled[name])
        note = f"{most[0]} / {most[1]} were the most at once; {kept[0]:.0%} / {kept[1]:.0%} of the rate without a limit"
        lines.append(_row(f"anchor-at-once, {limit} of a key", other, (ours, theirs), lambda one: one.rate, note=note))
    return lines


def _rate(samples: Sequence[Handled]) -> float:
    return median(one.rate for one in samples)


@case("anchor-cancel", "cancel 10,000 waiting messages by their ids", quick=False, group=_GROUP)
def cancel(bench: Bench) -> list[Line]:
    samples = cancelled(bench, 10_000)
    return [
        Row("anchor-cancel", f"{name} {version(name.lower())}, {one.way}", samples["pgqueue"], samples[name])
        for name, one in CANCELS.items()
        if name != "pgqueue"
    ]
