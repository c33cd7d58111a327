"""The cases that measure Python clients: publish by the thousand, drain with four consumers, memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import monotonic
from typing import Any, Final

from airflow_provider_pgqueue.core import run, verbs
from benchmarks.bench import Bench, case
from benchmarks.client import run_clients
from benchmarks.measure import in_turns
from benchmarks.peer import BODY, Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.peers.pgqueuer import PGQUEUER
from benchmarks.peers.procrastinate import PROCRASTINATE
from benchmarks.report import Line, Row

_BODIES: Final = [json.loads(BODY) | {"flight": number} for number in range(1000)]
_CONSUMERS: Final = 4
# How each drains, and about how many messages a second that may be.
_DRAINS: Final[dict[str, tuple[Peer, int]]] = {
    "pgqueue": (PGQUEUE, 15_000),
    "pgmq": (PGMQ, 10_000),
    "pgmq_asyncpg": (PGMQ, 15_000),
    "pgqueuer": (PGQUEUER, 4_000),
    "procrastinate": (PROCRASTINATE, 1_500),
}


@case("publish-1000-python", "publish 1,000 dicts at a time from Python, ids returned, one session")
def publish_1000_python(bench: Bench) -> list[Line]:
    with ExitStack() as stack:

        def database(key: str, peer: Peer) -> str:
            return stack.enter_context(bench.server.database(key, peer.name, peer.install))

        ours, copied, theirs = database("ours", PGQUEUE), database("copied", PGQUEUE), database("pgmq", PGMQ)
        conn = stack.enter_context(bench.server.connect(ours))
        copy_conn = stack.enter_context(bench.server.connect(copied))
        samples = in_turns(
            {
                "ours": partial(_repeat, bench, ours, PGQUEUE, partial(_publish, conn)),
                "copy": partial(_repeat, bench, copied, PGQUEUE, partial(_copy, copy_conn)),
                "pgmq": partial(_repeat, bench, theirs, PGMQ, _pgmq_publisher(stack, bench.server.dsn(theirs))),
            },
            bench.rounds,
        )
    name, rate = "publish-1000-python", samples["ours"]
    return [
        Row(name, "COPY into the same table, no ids", rate, samples["copy"], target=0.9),
        Row(name, "PGMQ's client, send_batch", rate, samples["pgmq"], target=3.0),
    ]


def _repeat(bench: Bench, database: str, peer: Peer, publish: Callable[[], Any]) -> float:
    with bench.server.connect(database) as conn:
        conn.execute(peer.empty.encode())
    publish()
    batches, started = 0, monotonic()
    while monotonic() < started + bench.seconds:
        publish()
        batches += 1
    return batches * len(_BODIES) / (monotonic() - started)


def _publish(conn: Any) -> None:
    # What PgQueueHook.publish_batch runs on its connection.
    run(conn, verbs.publish_batch("bench", _BODIES))


def _copy(conn: Any) -> None:
    with conn.cursor().copy("COPY messages.message (queue_name, message) FROM STDIN") as copy:
        # While one body is encoded, the server takes those before it.
        for body in _BODIES:
            copy.write_row(("bench", json.dumps(body)))


def _pgmq_publisher(stack: ExitStack, dsn: str) -> Callable[[], Any]:
    from pgmq import PGMQueue

    queue = PGMQueue(conn_string=dsn, init_extension=False)
    stack.callback(queue.close)
    return lambda: queue.send_batch("bench", _BODIES)


@case("drain-python", "drain with 4 Python consumers, batches of 10, handlers that do nothing")
def drain_python(bench: Bench) -> list[Line]:
    rounds = min(bench.rounds, 2 if bench.quick else 3)
    with ExitStack() as stack:
        calls = {}
        for key, (peer, guess) in _DRAINS.items():
            name = stack.enter_context(bench.server.database(key, peer.name, peer.install))
            messages = round(guess * bench.seconds * 2)
            calls[key] = partial(_drain, bench, name, peer, f"drain_{key}", messages)
        samples = in_turns(calls, rounds)
    ours = samples["pgqueue"]
    rows: list[Line] = []
    for key, text, target in (
        ("pgmq", "PGMQ's client", 2.0),
        ("pgmq_asyncpg", "PGMQ's asyncpg client", 1.3),
        ("pgqueuer", "PgQueuer, mode drain", 4.0),
        ("procrastinate", "procrastinate, concurrency 10", 2.0),
    ):
        theirs = samples[key]
        note = f"µs of clients + server: {_cpu(ours)} / {_cpu(theirs)}"
        rows += [
            Row("drain-python", text, [one.rate for one in ours], [one.rate for one in theirs], target=target),
            Row(
                "drain-python, CPU",
                text,
                [1 / one.cpu for one in ours],
                [1 / one.cpu for one in theirs],
                "msg/CPU s",
                note=note,
            ),
        ]
    return rows


@dataclass(frozen=True, slots=True)
class _Drain:
    """Messages each second, and the CPU seconds of a message: of the clients and of the server."""

    rate: float
    clients: float
    server: float

    @property
    def cpu(self) -> float:
        return self.clients + self.server


def _cpu(samples: list[_Drain]) -> str:
    clients, server = (median(getattr(one, kind) for one in samples) for kind in ("clients", "server"))
    return f"{clients * 1e6:.0f}+{server * 1e6:.0f}"


def _drain(bench: Bench, database: str, peer: Peer, role: str, messages: int) -> _Drain:
    with bench.server.connect(database) as conn:
        conn.execute("CHECKPOINT")
        peer.refill(conn, messages)
    before = bench.server.cpu_seconds()
    results = run_clients(role, bench.server.dsn(database), _CONSUMERS, batch=10)
    server = bench.server.cpu_seconds() - before
    handled = sum(result["handled"] for result in results)
    if handled != messages:
        raise RuntimeError(f"{role} handled {handled} of {messages} messages")
    ended = max(float(result["ended"]) for result in results)
    seconds = ended - min(float(result["started"]) for result in results)
    return _Drain(messages / seconds, sum(float(result["cpu"]) for result in results) / messages, server / messages)


@case("memory", "peak memory of one consumer: after a tenth of the messages, and after all")
def memory(bench: Bench) -> list[Line]:
    messages = 200_000 if bench.quick else 1_000_000
    with bench.server.database("memory", PGQUEUE.name, PGQUEUE.install) as name:
        with bench.server.connect(name) as conn:
            PGQUEUE.refill(conn, messages)
        result = run_clients("memory_pgqueue", bench.server.dsn(name), batch=100, first=messages // 10)[0]
    if result["handled"] != messages:
        raise RuntimeError(f"{result['handled']} of {messages} messages were handled")
    first = f"after {messages // 10:,} messages"
    row = Row(
        "memory", first, [result["end"]], [result["first"]], "MiB", 1.1, at_least=False, note=f"{messages:,} in all"
    )
    return [row]
