"""The cost of reading the depth of a queue."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.bench import Bench, case
from benchmarks.growth.sample import GROUP, once, prepared, turns
from benchmarks.measure import in_turns
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Limit, Line, Row

_MILLISECONDS: Final = 10
_LABELS: Final = {
    "quick": "status()",
    "exact": "status(exact => true)",
    "ready": "ready_queues()",
    "pgmq": "PGMQ metrics()",
}


@case("growth-depth", "status() of a queue of 10,000 to 10,000,000 messages", group=GROUP)
def depth(bench: Bench) -> list[Line]:
    sizes = [10_000, 100_000] if bench.quick else [10_000, 100_000, 1_000_000, 10_000_000]
    statements = {
        "quick": "SELECT count(*) FROM messages.status('bench')",
        "exact": "SELECT count(*) FROM messages.status('bench', exact => true)",
        "ready": "SELECT count(*) FROM messages.ready_queues(ARRAY['bench'])",
        "pgmq": "SELECT count(*) FROM pgmq.metrics('bench')",
    }
    series: dict[str, dict[int, list[float]]] = {name: {} for name in statements}
    with prepared(bench, "depth", PGQUEUE) as (_, conn), prepared(bench, "depth_pgmq", PGMQ) as (_, other):
        before = 0
        for size in sizes:
            for peer, session in ((PGQUEUE, conn), (PGMQ, other)):
                peer.publish(session, size - before)
                peer.analyse(session)
            before = size
            calls = {
                name: partial(once, other if name == "pgmq" else conn, statement)
                for name, statement in statements.items()
            }
            in_turns(calls, 1)  # so that plans and pages are there
            for name, samples in in_turns(calls, turns(bench)).items():
                series[name][size] = samples
    bench.curve(
        "growth-depth",
        "messages in the queue",
        "milliseconds",
        {label: series[name] for name, label in _LABELS.items()},
        _MILLISECONDS,
    )
    lines: list[Line] = []
    for size in sizes:
        limit = _MILLISECONDS if size == sizes[-1] else None
        name, ours, theirs = f"status(), {size:,} messages", series["quick"][size], series["pgmq"][size]
        lines.append(Limit(name, ours, "ms", limit))
        lines.append(Row(name, "PGMQ metrics", ours, theirs, "ms", at_least=False))
        lines.append(Limit(f"status(exact => true), {size:,} messages", series["exact"][size], "ms"))
    lines.append(Limit(f"ready_queues(), {sizes[-1]:,} messages", series["ready"][sizes[-1]], "ms", _MILLISECONDS))
    return lines
