"""The case that measures what a session with an old snapshot does to a queue under full load.

A dump, a forgotten transaction or a lagging replica keeps VACUUM from removing what the queue leaves behind. Four
clients publish 10, lease 10 and archive 10, again and again, in turns with and without a session that holds a snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from benchmarks.bench import Bench, case
from benchmarks.measure import Load, run_pgbench
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row


@case("held-snapshot", "a snapshot held open under full load: the median, and the end")
def held_snapshot(bench: Bench) -> list[Line]:
    seconds = round(bench.minutes * 60)
    shorter = min(seconds, 10 if bench.quick else 150)
    return [
        *_lines(bench, "held-snapshot", PGQUEUE, seconds, 0.8, maintenance="SELECT messages.maintain()"),
        *_lines(bench, "held-snapshot, PGMQ", PGMQ, shorter, None),
    ]


def _lines(
    bench: Bench, name: str, peer: Peer, seconds: int, target: float | None, maintenance: str = ""
) -> list[Line]:
    """Compare with the same load without a snapshot, in turns: in minutes a machine changes as much as a queue does."""
    last = 30 if seconds >= 120 else 5
    order = [False, True] if bench.quick or target is None else [False, True, True, False]
    runs = [(held, _run(bench, peer, seconds, maintenance, held=held)) for held in order]

    def row(which: str, rate: Callable[[list[float]], float]) -> Row:
        with_it, without = ([rate(rates) for held, rates in runs if held is wanted] for wanted in (True, False))
        return Row(f"{name} {seconds} s, {which}", "without it", with_it, without, target=target)

    return [row("median", median), row(f"last {last} s", lambda rates: median(rates[-last:]))]


def _run(bench: Bench, peer: Peer, seconds: int, maintenance: str, *, held: bool) -> list[float]:
    """Return the messages of each second after a warm-up, at whose end a session opens the snapshot if it is wanted."""
    warm_up = 2 if bench.quick else 5
    with bench.server.database("held", peer.name, peer.install) as name:
        with bench.server.connect(name) as conn:
            conn.execute("CHECKPOINT")
            peer.refill(conn, 1000)
        with ExitStack() as meanwhile:
            meanwhile.enter_context(_meanwhile(_every_minute, bench, name, maintenance))
            if held:
                meanwhile.enter_context(_meanwhile(_hold, bench, name, warm_up))
            load = Load(peer.script("cycle"), 10)
            run = run_pgbench(bench.server, name, load, warm_up + seconds, every_second=True)
    return [10 * tps for tps in run.progress][warm_up:]


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
