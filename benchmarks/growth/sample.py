"""The common part of the group: the time of one call, and a database that stays for all samples of a size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.measure import Load, run_pgbench
from benchmarks.peer import Peer
from benchmarks.server import Connection

GROUP = "growth"


def turns(bench: Bench) -> int:
    """Return how often each has its turn: there are many rows, and the quick form of all takes a minute."""
    return min(bench.rounds, 2) if bench.quick else bench.rounds


@contextmanager
def prepared(bench: Bench, name: str, peer: Peer) -> Iterator[tuple[str, Connection]]:
    """A database of its own and an open session in it."""
    with bench.server.database(name, peer.name, peer.install) as database, bench.server.connect(database) as conn:
        yield database, conn


def milliseconds(bench: Bench, database: str, script: str) -> float:
    """Return what one transaction takes a client that is alone, averaged over a slice."""
    return 1000 / run_pgbench(bench.server, database, Load(script, clients=1), bench.seconds).per_second


def once(conn: Connection, statement: str) -> float:
    """Return the milliseconds that one call of a statement takes."""
    started = perf_counter()
    conn.execute(statement.encode())
    return (perf_counter() - started) * 1000
