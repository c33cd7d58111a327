"""The roles of the clients of the anchors: `python -m benchmarks.anchors.roles ROLE DSN OPTIONS`; see `client`.

A worker handles messages until it is told to stop. Each role is the documented way of its library. Options: `at_once`,
how many messages a process handles at once or leases; `seconds` that a handler sleeps.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, process_time

from benchmarks.roles import Begun, Options, begin, main, role


@dataclass(frozen=True, slots=True)
class _Diary:
    """The key of each handled message, and when its handler began and ended."""

    entries: list[tuple[str, float, float]] = field(default_factory=list)

    @contextmanager
    def handling(self, key: str) -> Iterator[None]:
        started = monotonic()
        yield
        self.entries.append((key, started, monotonic()))

    def result(self, begun: Begun) -> Options:
        return {"entries": self.entries, "cpu": process_time() - begun.cpu}


@role
def handle_pgqueue(dsn: str, options: Options) -> Options:
    """`core.Worker`, which handles one message at a time."""
    from airflow_provider_pgqueue.core import Consumer, Message, Worker

    diary = _Diary()

    def handle(message: Message) -> None:
        with diary.handling(message.body["key"]):
            time.sleep(options["seconds"])

    consumer = Consumer(queue_name="bench", handle=handle, batch_size=options["at_once"])
    worker = Worker(conninfo=dsn, consumer=consumer)
    begun = begin()
    threading.Thread(target=lambda: (sys.stdin.readline(), worker.stop()), daemon=True).start()
    worker.run()
    return diary.result(begun)


@role
async def handle_procrastinate(dsn: str, options: Options) -> Options:
    """A worker of asynchronous jobs."""
    from procrastinate import App, PsycopgConnector

    app, diary = App(connector=PsycopgConnector(conninfo=dsn)), _Diary()

    @app.task(name="bench", queue="bench")
    async def handle(key: str) -> None:
        with diary.handling(key):
            await asyncio.sleep(options["seconds"])

    async with app.open_async():
        begun = begin()
        worker = app.run_worker_async(concurrency=options["at_once"], install_signal_handlers=False)
        running = asyncio.create_task(worker)
        await asyncio.to_thread(sys.stdin.readline)
        running.cancel()
        await asyncio.wait([running])
    return diary.result(begun)


@role
def handle_dbos(dsn: str, options: Options) -> Options:
    """A workflow for each message, started from a queue with the limits `queue`."""
    from dbos import DBOS, DBOSConfig

    config: DBOSConfig = {"name": "bench", "application_version": "1", "executor_id": str(os.getpid())}
    DBOS(config=config | {"system_database_url": dsn, "log_level": "ERROR"})
    diary = _Diary()

    @DBOS.workflow(name="bench")
    def handle(key: str) -> None:
        with diary.handling(key):
            time.sleep(options["seconds"])

    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=options["at_once"], **options["queue"])
    begun = begin()
    sys.stdin.readline()
    return diary.result(begun)


if __name__ == "__main__":
    main()
