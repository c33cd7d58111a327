"""The cost of many queues for the functions that go through all of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.bench import Bench, case
from benchmarks.growth.sample import GROUP, once, prepared, turns
from benchmarks.measure import in_turns
from benchmarks.peer import scalar
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Limit, Line, Row
from benchmarks.server import Connection

# PGMQ keeps two tables per queue, so 10,000 of its queues would take minutes to make.
_MOST_OF_PGMQ: Final = 1000
# One queue in a hundred holds something.
_BUSY: Final = 100
_NEW_QUEUES: Final = "SELECT count(messages.create_queue('queue_' || n)) FROM generate_series(%s::integer, %s) n"
_NEW_MESSAGES: Final = (
    "SELECT count(messages.publish('queue_' || n, '{}')) FROM generate_series(%s::integer, %s) n WHERE n %% %s = 0"
)
_RELATIONS: Final = "SELECT count(*) FROM pg_class WHERE relnamespace = 'messages'::regnamespace"


@case("growth-queues", "maintenance, ready_queues, status and create_queue with 100 to 10,000 queues", group=GROUP)
def queues(bench: Bench) -> list[Line]:
    sizes = [50, 500] if bench.quick else [100, 1000, 10_000]
    statements = {
        "maintain()": "SELECT messages.maintain()",
        "ready_queues()": "SELECT count(*) FROM messages.ready_queues()",
        "status()": "SELECT count(*) FROM messages.status()",
        "create_queue()": "SELECT messages.create_queue('another')",
    }
    limits = {"maintain()": 1000.0, "ready_queues()": 300.0}
    series: dict[str, dict[int, list[float]]] = {name: {} for name in statements}
    relations = {}
    with prepared(bench, "queues", PGQUEUE) as (_, conn):
        before = 0
        for size in sizes:
            _create(conn, before, size)
            before = size
            calls = {name: partial(once, conn, statement) for name, statement in statements.items()}
            calls["create_queue()"] = partial(_create_another, conn)
            in_turns(calls, 1)
            for name, samples in in_turns(calls, turns(bench)).items():
                series[name][size] = samples
            relations[size] = scalar(conn, _RELATIONS)
    peer = sizes[0] if bench.quick else _MOST_OF_PGMQ
    theirs = _pgmq(bench, peer)
    bench.curve("growth-queues", "queues", "milliseconds", series)
    last = sizes[-1]
    lines: list[Line] = []
    for name, by_size in series.items():
        lines.append(Limit(f"{name}, {last:,} queues", by_size[last], "ms", limits.get(name)))
        few = f"with {sizes[0]:,}"
        lines.append(Row(f"{name}, {last:,} queues", few, by_size[last], by_size[sizes[0]], "ms", at_least=False))
    for name, other in (("status()", "metrics_all"), ("create_queue()", "create")):
        ours, row = series[name][peer], f"{name}, {peer:,} queues"
        lines.append(Row(row, f"PGMQ {other}", ours, theirs[other], "ms", at_least=False))
    lines.append(Limit("relations per queue", [(relations[last] - relations[sizes[0]]) / (last - sizes[0])], "", None))
    return lines


def _create(conn: Connection, first: int, last: int) -> None:
    with conn.transaction():
        conn.execute(_NEW_QUEUES, [first + 1, last])
        conn.execute(_NEW_MESSAGES, [first + 1, last, _BUSY])
    conn.execute("VACUUM (ANALYZE)")


def _create_another(conn: Connection) -> float:
    took = once(conn, "SELECT messages.create_queue('another')")
    conn.execute("SELECT messages.drop_queue('another')")
    return took


def _pgmq(bench: Bench, queues: int) -> dict[str, list[float]]:
    with prepared(bench, "queues_pgmq", PGMQ) as (_, conn):
        for number in range(queues):
            conn.execute("SELECT pgmq.create(%s)", [f"queue_{number}"])

        def create() -> float:
            took = once(conn, "SELECT pgmq.create('another')")
            conn.execute("SELECT pgmq.drop_queue('another')")
            return took

        return in_turns(
            {"metrics_all": partial(once, conn, "SELECT count(*) FROM pgmq.metrics_all()"), "create": create},
            turns(bench),
        )
