"""The case that measures what a session with an old snapshot does to a queue under full load.

A dump, a forgotten transaction or a lagging replica keeps VACUUM from removing what the queue leaves behind. Four
clients publish 10, lease 10 and archive 10, again and again; after a while somebody opens a snapshot and holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.bench import Bench, case
from benchmarks.measure import Load, run_pgbench
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row


@dataclass(frozen=True, slots=True)
class Held:
    """Messages each second, second by second: before the snapshot, and while it was held."""

    before: list[float]
    during: list[float]


@case("held-snapshot", "a snapshot held open under full load: the median, and the end")
def held_snapshot(bench: Bench) -> list[Line]:
    seconds = round(bench.minutes * 60)
    ours = _held(bench, PGQUEUE, seconds, upkeep="SELECT messages.upkeep()")
    shorter = min(seconds, 10 if bench.quick else 150)
    theirs = _held(bench, PGMQ, shorter)
    last = 30 if seconds >= 120 else 5
    return [
        *_lines(f"held-snapshot {seconds} s", ours, last, 0.8),
        *_lines(f"held-snapshot {shorter} s, PGMQ", theirs, last, None),
    ]


def _lines(name: str, held: Held, last: int, target: float | None) -> list[Line]:
    return [
        Row(f"{name}, median", "before the snapshot", [median(held.during)], [median(held.before)], target=target),
        Row(
            f"{name}, last {last} s",
            "before the snapshot",
            [median(held.during[-last:])],
            [median(held.before)],
            target=target,
        ),
    ]


def _held(bench: Bench, peer: Peer, seconds: int, upkeep: str = "") -> Held:
    before = 6 if bench.quick else 30
    warm_up = 2 if bench.quick else 5
    with bench.server.database("held", peer.name, peer.install) as name:
        with bench.server.connect(name) as conn:
            conn.execute("CHECKPOINT")
            peer.refill(conn, 1000)
        with _meanwhile(_hold, bench, name, warm_up + before), _meanwhile(_every_minute, bench, name, upkeep):
            load = Load(peer.script("cycle"), 10)
            run = run_pgbench(bench.server, name, load, warm_up + before + seconds, every_second=True)
    rates = [10 * tps for tps in run.progress]
    return Held(rates[warm_up : warm_up + before], rates[warm_up + before :])


@contextmanager
def _meanwhile(work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run something in a thread, which is told when to stop."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(*arguments, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _hold(bench: Bench, database: str, after: float, stop: threading.Event) -> None:
    if stop.wait(after):
        return
    with bench.server.connect(database) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pg_class")
        stop.wait()


def _every_minute(bench: Bench, database: str, statement: str, stop: threading.Event) -> None:
    """Run a statement as pg_cron would."""
    while statement and not stop.wait(60):
        with bench.server.connect(database) as conn:
            conn.execute(statement.encode())
