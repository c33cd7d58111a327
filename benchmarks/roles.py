"""The roles of a client process: `python -m benchmarks.roles ROLE DSN OPTIONS`; see `client`.

Handlers do nothing, so that what is measured is the queue and its client. Times are of the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Final, NamedTuple

Options = dict[str, Any]
Role = Callable[[str, Options], Any]
_ROLES: Final[dict[str, Role]] = {}


def role(run: Role) -> Role:
    """Register what a client process does, under the name of the function."""
    _ROLES[run.__name__] = run
    return run


class Begun(NamedTuple):
    """When the word to begin came, and what CPU the process had used by then."""

    at: float
    cpu: float


def begin() -> Begun:
    """Say that all is prepared, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()
    return Begun(monotonic(), process_time())


def _drained(begun: Begun, ended: float, handled: int) -> Options:
    return {"started": begun.at, "ended": ended, "handled": handled, "cpu": process_time() - begun.cpu}


@role
def drain_pgqueue(dsn: str, options: Options) -> Options:
    """`Consumer.drain`, which the worker and the Airflow operator call too."""
    from airflow_provider_pgqueue.core import Consumer, connect

    consumer = Consumer(queue_name="bench", handle=lambda message: None, batch_size=options["batch"])
    with connect(dsn) as conn:
        begun = begin()
        counts = consumer.drain(conn)
    return _drained(begun, monotonic(), counts["success"])


@role
def drain_pgmq(dsn: str, options: Options) -> Options:
    """PGMQ's client as its documentation shows it: read a batch, archive the batch."""
    from pgmq import PGMQueue

    queue = PGMQueue(conn_string=dsn, init_extension=False)
    handled = 0
    begun = begin()
    while messages := queue.read("bench", vt=300, qty=options["batch"]):
        handled += len(queue.archive_batch("bench", [message.msg_id for message in messages]))
    ended = monotonic()
    queue.close()
    return _drained(begun, ended, handled)


@role
async def drain_pgmq_asyncpg(dsn: str, options: Options) -> Options:
    """PGMQ's asynchronous client."""
    from pgmq.async_queue import PGMQueue

    queue = PGMQueue(conn_string=dsn, init_extension=False)
    await queue.init()
    handled = 0
    begun = begin()
    while messages := await queue.read("bench", vt=300, qty=options["batch"]):
        handled += len(await queue.archive_batch("bench", [message.msg_id for message in messages]))
    ended = monotonic()
    await queue.close()
    return _drained(begun, ended, handled)


@role
async def drain_pgqueuer(dsn: str, options: Options) -> Options:
    """PgQueuer in its mode `drain`; ends with the last handler, before its buffers are flushed."""
    import asyncpg
    from pgqueuer import Job, PgQueuer
    from pgqueuer.types import QueueExecutionMode

    handled, ended = 0, 0.0
    queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(dsn))

    @queue.entrypoint("bench")
    async def handle(job: Job) -> None:
        nonlocal handled, ended
        handled, ended = handled + 1, monotonic()

    begun = begin()
    await queue.run(mode=QueueExecutionMode.drain, batch_size=options["batch"])
    return _drained(begun, ended, handled)


@role
async def drain_procrastinate(dsn: str, options: Options) -> Options:
    """A procrastinate worker that takes one job at a time, so many at once as the others take in a batch."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=dsn))
    handled, ended = 0, 0.0

    @app.task(name="bench", queue="bench")
    async def handle(**body: Any) -> None:
        nonlocal handled, ended
        handled, ended = handled + 1, monotonic()

    async with app.open_async():
        begun = begin()
        await app.run_worker_async(wait=False, concurrency=options["batch"], install_signal_handlers=False)
    return _drained(begun, ended, handled)


@role
def memory_pgqueue(dsn: str, options: Options) -> Options:
    """Drain everything and note the peak of resident memory after some messages and at the end, in MiB."""
    from airflow_provider_pgqueue.core import Consumer, connect

    peaks: list[float] = []

    def on_batch(counts: Counter[str]) -> None:
        if not peaks and counts.total() >= options["first"]:
            peaks.append(_peak())

    consumer = Consumer(queue_name="bench", handle=lambda message: None, batch_size=options["batch"])
    with connect(dsn) as conn:
        begin()
        counts = consumer.drain(conn, on_batch=on_batch)
    return {"handled": counts["success"], "first": peaks[0], "end": _peak()}


def _peak() -> float:
    # Not ru_maxrss: a new process inherits that of the one that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@role
def lease_times(dsn: str, options: Options) -> list[float]:
    """Lease and archive for some seconds; seconds that each lease took."""
    import psycopg

    lease, archive = options["lease"].encode(), options["archive"].encode()
    times = []
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as conn:
        end = begin().at + options["seconds"]
        while (before := monotonic()) < end:
            row = conn.execute(lease).fetchone()
            times.append(monotonic() - before)
            conn.execute(archive, row)
    return times


@role
def listen_pgqueue(dsn: str, options: Options) -> dict[int, float]:
    """One session: LISTEN, then lease what is there; when each message was leased."""
    import psycopg

    from airflow_provider_pgqueue.core import run, verbs

    seen: dict[int, float] = {}
    lease = verbs.lease("bench", max_messages=100)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("LISTEN new_message")
        run(conn, lease)
        end = begin().at + options["seconds"]
        while monotonic() < end:
            while messages := run(conn, lease):
                now = monotonic()
                seen.update((message.body["number"], now) for message in messages)
                conn.execute(
                    "SELECT messages.archive(%s, %s::bigint[])",
                    [messages[0].lock_token, [message.id for message in messages]],
                )
            for _ in conn.notifies(timeout=0.1, stop_after=1):
                pass
    return seen


@role
def work_pgqueue(dsn: str, options: Options) -> dict[int, float]:
    """`core.Worker`, as it ships: when each message came to its handler."""
    from airflow_provider_pgqueue.core import Consumer, Message, Worker

    seen: dict[int, float] = {}

    def handle(message: Message) -> None:
        seen[message.body["number"]] = monotonic()

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="bench", handle=handle))
    end = begin().at + options["seconds"]
    threading.Timer(end - monotonic(), worker.stop).start()
    worker.run()
    return seen


@role
def poll_pgmq(dsn: str, options: Options) -> dict[int, float]:
    """PGMQ's polling client with its defaults: `read_with_poll` polls every 100 ms."""
    from pgmq import PGMQueue

    queue = PGMQueue(conn_string=dsn, init_extension=False)
    seen: dict[int, float] = {}
    end = begin().at + options["seconds"]
    while monotonic() < end:
        if messages := queue.read_with_poll("bench", vt=300, qty=100, max_poll_seconds=1):
            now = monotonic()
            seen.update((message.message["number"], now) for message in messages)
            queue.archive_batch("bench", [message.msg_id for message in messages])
    queue.close()
    return seen


def main() -> None:
    """Play the role of the command line, and print its result as JSON."""
    logging.disable(logging.WARNING)
    name, dsn, options = sys.argv[1:]
    result = _ROLES[name](dsn, json.loads(options))
    if isinstance(result, Coroutine):
        result = asyncio.run(result)
    print(json.dumps(result), flush=True)
    # Without waiting for what a client library may have left running.
    os._exit(0)


if __name__ == "__main__":
    main()
