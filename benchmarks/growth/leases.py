"""The cost of leases for consumers behind them: all expire at once, or one expires among many live leases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Final

from airflow_provider_pgqueue.core.maintenance import run_maintenance
from benchmarks.bench import Bench, case
from benchmarks.growth.sample import GROUP, prepared
from benchmarks.measure import in_turns
from benchmarks.peer import Peer, scalar
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Limit, Line, Row
from benchmarks.server import Connection

_CALL: Final = 10_000
_LEASE = {
    "pgqueue": "SELECT count(*) FROM messages.lease('bench', %(count)s, make_interval(secs => %(seconds)s))",
    "pgmq": "SELECT count(*) FROM pgmq.read('bench', ceil(%(seconds)s)::integer, %(count)s)",
}
_EXPIRED: Final = "SELECT count(*) FROM messages.message WHERE lock_expires_at <= clock_timestamp()"
_TEN: Final = (
    "SELECT count(*) FROM (SELECT lock_token, array_agg(id) AS ids FROM messages.lease('bench', 10) GROUP BY 1) l,"
    " messages.archive(l.lock_token, l.ids)"
)


def _lease_until(conn: Connection, peer: Peer, messages: int, until: datetime) -> None:
    """Lease messages so that all their leases end at that time."""
    for first in range(0, messages, _CALL):
        seconds = (until - datetime.now(UTC)).total_seconds()
        if seconds <= 0:
            raise RuntimeError(f"{peer.name} took longer than planned to lease {messages:,} messages")
        count = min(_CALL, messages - first)
        found = scalar(conn, _LEASE[peer.name], {"count": count, "seconds": seconds})
        if found != count:
            raise RuntimeError(f"{peer.name} leased {found} messages instead of {count}")


def _wait_until(moment: datetime) -> None:
    sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


@case("growth-expired", "25,000 to 800,000 leases expire at once: maintenance, and leases meanwhile", group=GROUP)
def expired(bench: Bench) -> list[Line]:
    sizes = [10_000, 30_000] if bench.quick else [25_000, 100_000, 400_000, 800_000]
    rounds = 1 if bench.quick else 3
    found: dict[int, list[Ended]] = {size: [] for size in sizes}
    with prepared(bench, "expired", PGQUEUE) as (database, conn):
        for size in sizes:
            for _ in range(rounds):
                found[size].append(_end(bench, database, conn, size))
    each = {size: [one.microseconds for one in all_] for size, all_ in found.items()}
    longest = {size: [one.longest for one in all_] for size, all_ in found.items()}
    bench.curve("growth-expired", "leases that expire at once", "µs per message", {"maintenance": each}, limit=20)
    first, last = sizes[0], sizes[-1]
    name = f"{last:,} leases expire at once"
    return [
        Limit(f"{name}: maintenance", each[last], "µs/msg", 20),
        Row(f"{name}: maintenance", f"{first:,} at once", each[last], each[first], "µs/msg", 1.3, at_least=False),
        Limit(f"{name}: left after a maintenance run", [one.left for one in found[last]], "leases", 0),
        Limit(f"{name}: longest lease meanwhile", longest[last], "ms", 100),
        Limit(f"{name}: leases meanwhile that found nothing", [100 * one.empty for one in found[last]], "%", 0),
    ]


class Ended:
    """The work of a maintenance run on expired leases, and the leases of consumers meanwhile."""

    def __init__(self, messages: int, seconds: float, left: int, waits: list[tuple[float, int]]) -> None:
        self.microseconds = seconds / max(1, messages - left) * 1e6
        self.left = left
        self.longest = max((took for took, _ in waits), default=0.0)
        self.empty = sum(not found for _, found in waits) / max(1, len(waits))


def _end(bench: Bench, database: str, conn: Connection, messages: int) -> Ended:
    PGQUEUE.refill(conn, messages)
    until = datetime.now(UTC) + timedelta(seconds=3 + messages / 15_000)
    _lease_until(conn, PGQUEUE, messages, until)
    conn.execute("CHECKPOINT")
    _wait_until(until)
    with _consumer(bench, database) as waits:
        started = monotonic()
        run_maintenance(conn)
        seconds = monotonic() - started
        left = scalar(conn, _EXPIRED)
    return Ended(messages, seconds, left, waits)


@contextmanager
def _consumer(bench: Bench, database: str) -> Iterator[list[tuple[float, int]]]:
    """Lease and archive 10 a hundred times a second; the milliseconds that each took, and how many it found."""
    waits: list[tuple[float, int]] = []
    stop = threading.Event()

    def consume() -> None:
        with bench.server.connect(database) as conn:
            while not stop.wait(0.01):
                started = monotonic()
                found = scalar(conn, _TEN)
                waits.append(((monotonic() - started) * 1000, found))

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


_LATE: Final = {
    "pgqueue": {
        "lease": "SELECT id, lock_token FROM messages.lease('bench', 1, '1 hour')",
        "end": "SELECT * FROM messages.extend(%(token)s, ARRAY[%(id)s::bigint], '2 s')",
        "poll": "SELECT id, lock_token FROM messages.lease('bench', 1)",
        "release": "SELECT * FROM messages.release(%(token)s, ARRAY[%(id)s::bigint])",
    },
    "pgmq": {
        "lease": "SELECT msg_id, NULL FROM pgmq.read('bench', 3600, 1)",
        "end": "SELECT msg_id FROM pgmq.set_vt('bench', %(id)s::bigint, 2)",
        "poll": "SELECT msg_id, NULL FROM pgmq.read('bench', 300, 1)",
        "release": "SELECT msg_id FROM pgmq.set_vt('bench', %(id)s::bigint, 0)",
    },
}


@case("growth-live-leases", "one lease expires next to 1,000 to 1,000,000 that live: how late it is found", group=GROUP)
def live(bench: Bench) -> list[Line]:
    sizes = [20_000] if bench.quick else [1000, 100_000, 1_000_000]
    ours: dict[int, list[float]] = {}
    theirs: dict[int, list[float]] = {}
    for size in sizes:
        with (
            prepared(bench, "live", PGQUEUE) as (_, conn),
            prepared(bench, "live_pgmq", PGMQ) as (_, other),
        ):
            until = datetime.now(UTC) + timedelta(hours=1)
            # Each turn leases the same message twice.
            conn.execute("SELECT messages.alter_queue('bench', max_attempts => 100)")
            for peer, session in ((PGQUEUE, conn), (PGMQ, other)):
                peer.refill(session, size)
                _lease_until(session, peer, size // 2, until)
            calls = {
                "pgqueue": partial(_late, conn, PGQUEUE, size, until),
                "pgmq": partial(_late, other, PGMQ, size, until),
            }
            samples = in_turns(calls, 1 if bench.quick else 3)
            ours[size], theirs[size] = samples["pgqueue"], samples["pgmq"]
    bench.curve(
        "growth-live-leases", "leases that live", "found, ms after its end", {"pgqueue": ours, "PGMQ": theirs}, 1000
    )
    last = sizes[-1]
    name = f"found next to {last:,} live leases"
    return [
        Limit(f"{name}, late by", ours[last], "ms", 1000),
        Row(f"{name}, late by", "PGMQ", ours[last], theirs[last], "ms", at_least=False),
        Limit(f"{name}, worst", [max(ours[last])], "ms", 1000, note=f"PGMQ {max(theirs[last]):,.0f} ms"),
    ]


def _late(conn: Connection, peer: Peer, messages: int, until: datetime) -> float:
    """Let one lease in the middle of the others end, and poll until it is found; the milliseconds after its end.

    What was found is released, so that the next turn finds one message that is ready, as this one did.
    """
    statements = _LATE[peer.name]
    one = _leased(conn, statements["lease"])
    if one is None:
        raise RuntimeError(f"{peer.name} has no message that is ready")
    left = messages - scalar(conn, _LEASED[peer.name])
    _lease_until(conn, peer, left, until)
    conn.execute(statements["end"].encode(), one)
    ended = monotonic() + 2
    while (found := _leased(conn, statements["poll"])) is None:
        if monotonic() > ended + 60:
            raise RuntimeError(f"{peer.name} did not find the message within a minute")
        sleep(0.02)
    late = max(0.0, (monotonic() - ended) * 1000)
    conn.execute(statements["release"].encode(), found)
    return late


def _leased(conn: Connection, statement: str) -> dict[str, object] | None:
    row = conn.execute(statement.encode()).fetchone()
    return dict(zip(("id", "token"), row, strict=True)) if row else None


_LEASED: Final = {
    "pgqueue": "SELECT count(*) FROM messages.message WHERE lock_expires_at > clock_timestamp()",
    "pgmq": "SELECT count(*) FROM pgmq.q_bench WHERE vt > clock_timestamp()",
}
