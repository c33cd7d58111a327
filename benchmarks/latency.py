"""The cases that measure time: from commit to leased, and the first lease of a queue that was never analysed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import Any, Final

from airflow_provider_pgqueue.core import run, verbs
from benchmarks.bench import Bench, case
from benchmarks.client import clients
from benchmarks.measure import in_turns
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Limit, Line
from benchmarks.server import Connection

_EACH_SECOND: Final = 100
_BACKLOG: Final = 20_000
Publish = Callable[[Connection, int], object]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


@case("latency", "from commit to leased, one listener, 100 messages a second")
def latency(bench: Bench) -> list[Line]:
    seconds = 4 if bench.quick else 10
    samples = in_turns(
        {
            "listen": lambda: _latencies(bench, PGQUEUE, "listen_pgqueue", _publish_ours, seconds),
            "work": lambda: _latencies(bench, PGQUEUE, "work_pgqueue", _publish_ours, seconds),
            "poll": lambda: _latencies(bench, PGMQ, "poll_pgmq", _publish_pgmq, seconds),
        },
        1 if bench.quick else 3,
    )

    def line(key: str, what: str, percent: int, target: float | None, note: str = "") -> Line:
        each = [percentile(times, percent) * 1000 for times in samples[key]]
        return Limit(f"latency p{percent}, {what}", each, "ms", target, note)

    return [
        line("listen", "LISTEN and lease", 50, 1),
        line("listen", "LISTEN and lease", 99, 10),
        line("work", "core.Worker", 50, 1, "to its handler"),
        line("work", "core.Worker", 99, 10, "to its handler"),
        line("poll", "PGMQ read_with_poll", 50, None, "polls every 100 ms"),
        line("poll", "PGMQ read_with_poll", 99, None, "polls every 100 ms"),
    ]


def _publish_ours(conn: Connection, number: int) -> None:
    run(conn, verbs.publish("bench", {"number": number}))


def _publish_pgmq(conn: Connection, number: int) -> None:
    conn.execute("SELECT * FROM pgmq.send('bench', jsonb_build_object('number', %s::int))", [number])


def _latencies(bench: Bench, peer: Peer, role: str, publish: Publish, seconds: int) -> list[float]:
    """Return, for each message, seconds from when its publish had returned until it was leased."""
    with bench.server.database("latency", peer.name, peer.install) as name, bench.server.connect(name) as conn:
        dsn = bench.server.dsn(name)
        with clients(role, dsn, seconds=seconds + 3) as (client,):
            client.write("go")
            time.sleep(1.5)  # until it listens
            committed = _publish_steadily(conn, publish, seconds * _EACH_SECOND)
            leased: dict[str, Any] = client.result()
    if missing := len(committed) - len(leased):
        raise RuntimeError(f"{role} did not see {missing} messages")
    # The first second warms sessions and plans.
    return [leased[str(number)] - at for number, at in committed.items() if number >= _EACH_SECOND]


def _publish_steadily(conn: Connection, publish: Publish, messages: int) -> dict[int, float]:
    committed = {}
    start = time.monotonic()
    for number in range(messages):
        time.sleep(max(0.0, start + number / _EACH_SECOND - time.monotonic()))
        publish(conn, number)
        committed[number] = time.monotonic()
    return committed


@case("first-lease", "the first lease of 10 on a queue of 20,000 that was never analysed")
def first_lease(bench: Bench) -> list[Line]:
    warm, cold = [], []
    for _ in range(5 if bench.quick else 15):
        warm.append(_first_lease(bench, warmed=True))
        cold.append(_first_lease(bench, warmed=False))
    return [
        Limit("first-lease", warm, "ms", 1, "in a session that leased from another queue before"),
        Limit("first-lease, new session", cold, "ms", None, "compiles the functions and plans their statements"),
    ]


def _first_lease(bench: Bench, *, warmed: bool) -> float:
    with bench.server.database("first", PGQUEUE.name, PGQUEUE.install) as name, bench.server.connect(name) as conn:
        with bench.server.connect(name) as publisher:
            publisher.execute("SELECT messages.create_queue('other')")
            publisher.execute("SELECT messages.publish('other', '{}')")
            PGQUEUE.publish(publisher, _BACKLOG)
        if warmed:
            conn.execute("SELECT count(*) FROM messages.lease('other', 10)")
        started = time.perf_counter()
        conn.execute("SELECT count(*) FROM messages.lease('bench', 10)")
        return (time.perf_counter() - started) * 1000
