"""The cases that measure a queue in which much lies that is not leased now: delayed, leased, waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import rates
from benchmarks.client import run_clients
from benchmarks.latency import percentile
from benchmarks.measure import Load, full_slice, in_turns
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row
from benchmarks.server import Connection

_EMPTY: Final = "the same without them"
_TEN_MILLION: Final = 10_000_000


@case("delayed", "100,000 delayed messages in the queue; lease and archive 10, 4 clients")
def delayed(bench: Bench) -> list[Line]:
    messages = 20_000 if bench.quick else 100_000
    return _with_an_empty_one(
        bench, f"{messages:,} delayed", lambda peer, conn: peer.publish(conn, messages, peer.delayed)
    )


@case("leased", "10,000 leased messages in the queue; lease and archive 10, 4 clients", quick=False)
def leased(bench: Bench) -> list[Line]:
    def before(peer: Peer, conn: Connection) -> None:
        peer.publish(conn, 10_000)
        peer.publish(conn, 10_000, peer.leased)

    return _with_an_empty_one(bench, "10,000 leased", before)


@case("waiting", "1,000,000 waiting messages in the queue; lease and archive 10, 4 clients", quick=False)
def waiting(bench: Bench) -> list[Line]:
    messages = 1_000_000
    return _with_an_empty_one(bench, f"{messages:,} waiting", lambda peer, conn: peer.publish(conn, messages))


def _with_an_empty_one(bench: Bench, name: str, before: Callable[[Peer, Connection], None]) -> list[Line]:
    empty = {peer.name: Contestant(peer, Load(peer.script("lease_archive", 10), 10)) for peer in (PGQUEUE, PGMQ)}
    full = {f"{key}_full": replace(one, before=partial(before, one.peer)) for key, one in empty.items()}
    samples = bench.consume(empty | full, rounds=min(bench.rounds, 2 if bench.quick else 4))
    ours, theirs = rates(samples["pgqueue_full"]), rates(samples["pgmq_full"])
    return [
        Row(name, _EMPTY, ours, rates(samples["pgqueue"]), target=0.9),
        Row(name, "PGMQ", ours, theirs),
        Row(f"{name}, PGMQ", _EMPTY, theirs, rates(samples["pgmq"])),
    ]


@case("waiting-10m", "10,000,000 waiting messages; lease and archive 100, 4 clients; p99 of a lease", quick=False)
def waiting_10m(bench: Bench) -> list[Line]:
    with ExitStack() as stack:
        calls = {}
        for peer in (PGQUEUE, PGMQ):
            name = stack.enter_context(bench.server.database(f"10m_{peer.name}", peer.name, peer.install))
            with bench.server.connect(name) as conn:
                peer.refill(conn, _TEN_MILLION)
            load = Load(peer.script("lease_archive", 100), 100)
            calls[f"{peer.name} rate"] = partial(_rate, bench, name, load)
            calls[f"{peer.name} p99"] = partial(_p99, bench, name, peer)
        with bench.server.connect("postgres") as conn:
            conn.execute("CHECKPOINT")
        samples = in_turns(calls, bench.rounds)
    name = "10,000,000 waiting"
    return [
        Row(name, "PGMQ", samples["pgqueue rate"], samples["pgmq rate"], target=3.0),
        Row(f"{name}, p99", "PGMQ", samples["pgqueue p99"], samples["pgmq p99"], "ms", 0.4, at_least=False),
    ]


def _rate(bench: Bench, database: str, load: Load) -> float:
    return full_slice(bench.server, database, load, bench.seconds).rate


def _p99(bench: Bench, database: str, peer: Peer) -> float:
    """Return the 99th percentile of the time that a client waits for a lease of 100, in milliseconds."""
    dsn, options = bench.server.dsn(database), _LEASES[peer.name] | {"seconds": bench.seconds}
    return median(percentile(times, 99) * 1000 for times in run_clients("lease_times", dsn, 4, **options))


_LEASES: Final = {
    "pgqueue": {
        "lease": "SELECT (array_agg(lock_token))[1], array_agg(id) FROM messages.lease('bench', 100)",
        "archive": "SELECT count(*) FROM messages.archive(%s, %s)",
    },
    "pgmq": {
        "lease": "SELECT array_agg(msg_id) FROM pgmq.read('bench', 300, 100)",
        "archive": "SELECT count(*) FROM pgmq.archive('bench', %s::bigint[])",
    },
}
