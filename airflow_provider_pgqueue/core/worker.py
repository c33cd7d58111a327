"""A consumer as a process of its own, which waits for messages, handles them and stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.breaker import Breaker
from airflow_provider_pgqueue.core.client import run_async
from airflow_provider_pgqueue.core.connection import connect, connect_async
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.errors import ConnectionFailed, QueuePaused, why_again
from airflow_provider_pgqueue.core.listener import AsyncConnection, Listener
from airflow_provider_pgqueue.core.pause import pause_after
from airflow_provider_pgqueue.core.renewal import Renewal

log = logging.getLogger(__name__)

_AFTER_NOTHING: Final = 0.01  # seconds until the next look of a worker that found nothing


@dataclass(kw_only=True)
class Worker:
    """Handles the messages of one queue for as long as the process lives.

    A NOTIFY makes it look for work at once; without one it looks every `poll_interval` seconds, so it depends neither
    on NOTIFY nor on the upkeep. It opens two connections, one to work and one to listen. It opens them again when they
    break, or when the server cannot write, like a standby that is not promoted yet.
    On SIGTERM and SIGINT it finishes the current message, archives what is done, releases the rest, and `run` returns.
    `kill -9` loses nothing, because the leases expire.

    :param conninfo: libpq connection string or URL.
    :param consumer: the queue, the handler, the batch size and the length of a lease.
    :param poll_interval: seconds between looks when no notification arrives.
    """

    conninfo: str
    consumer: Consumer
    poll_interval: float = 30.0
    counts: Counter[str] = field(init=False, default_factory=Counter)
    _failures: int = field(init=False, default=0)
    _wake: threading.Event = field(init=False, default_factory=threading.Event)
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)

    def stop(self) -> None:
        """Make `run` return after the current message. Safe in a signal handler and from other threads."""
        self._stopping.set()
        self._wake.set()

    def run(self, *, until_empty: bool = False) -> Counter[str]:
        """Handle messages until `stop`, SIGTERM or SIGINT, or with `until_empty` until the queue has none ready.

        Returns how messages ended, and raises HandlerBroken, as `Consumer.drain` does.
        """
        breaker = Breaker(self.consumer.queue_name, self.consumer.give_up_after)
        with stop_on_signals(self.stop), self._listening(until_empty):
            while not self._stopping.is_set():
                try:
                    # Check after each reconnection, because the schema may have been upgraded meanwhile.
                    with (
                        connect(self.conninfo, check_schema=True, application_name="pgqueue worker") as conn,
                        # One for all drains: to start its thread takes a tenth of the time from a ring to the handler.
                        closing(Renewal()) as renewal,
                    ):
                        self._serve(conn, renewal, until_empty, breaker)
                    break
                except (ConnectionFailed, psycopg.OperationalError) as error:
                    self._failures += 1
                    pause = pause_after(self._failures)
                    log.warning("%s; next try in %.1f s", why_again(error), pause)
                    self._stopping.wait(pause)
        return self.counts

    def _serve(self, conn: psycopg.Connection[Any], renewal: Renewal, until_empty: bool, breaker: Breaker) -> None:
        intake, fruitless = self.consumer.intake(conn), 0
        while not self._stopping.is_set():
            # Before the work: what rings meanwhile must lead to another look.
            self._wake.clear()
            before = self.counts.total()
            try:
                self.consumer.drain(
                    conn,
                    stop=self._stopping.is_set,
                    breaker=breaker,
                    on_batch=self._note_success,
                    intake=intake,
                    renewal=renewal,
                    counts=self.counts,
                )
            except QueuePaused as error:
                # A worker outlives a pause: resume_queue rings.
                log.info("%s", error)
            self._failures = 0
            if until_empty:
                return
            fruitless = 0 if self.counts.total() > before else fruitless + 1
            if fruitless > 1:
                # A queue that rings a thousand times a second costs the consumers of others a hundred leases. Not after
                # the first: that ring may have been for what the drain before it took already.
                self._stopping.wait(_AFTER_NOTHING)
            self._wake.wait(self.poll_interval)

    def _note_success(self, counts: Counter[str]) -> None:
        # Not when it connects: a server that takes connections but refuses to write deserves the pauses too.
        self._failures = 0

    @contextmanager
    def _listening(self, until_empty: bool) -> Iterator[None]:
        if until_empty:
            yield
            return
        loop = asyncio.new_event_loop()
        listening = loop.create_task(self._listen())
        thread = threading.Thread(
            target=self._run_listener,
            args=(loop, listening),
            name="pgqueue-listener",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # the loop is closed: the listener gave up
                loop.call_soon_threadsafe(listening.cancel)
            thread.join()

    def _run_listener(self, loop: asyncio.AbstractEventLoop, listening: asyncio.Task[None]) -> None:
        try:
            loop.run_until_complete(listening)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            log.warning("not listening (%s): polling every %.0f s", error, self.poll_interval)
        finally:
            loop.close()

    async def _listen(self) -> None:
        # What rings may be for another queue. But to ask first would cost a round trip more than to lease at once.
        listener = Listener(
            self._connect_listener, self._look, poll_interval=self.poll_interval, on_ring=self._wake.set
        )
        await listener.run()

    async def _connect_listener(self) -> AsyncConnection:
        return await connect_async(self.conninfo, application_name="pgqueue listener")

    async def _look(self, conn: AsyncConnection) -> timedelta | None:
        ask = verbs.ready_queues(
            [self.consumer.queue_name], count_up_to=1, topic=self.consumer.topic, headers=self.consumer.headers
        )
        found = await run_async(conn, ask)
        if any(queue.ready for queue in found):
            self._wake.set()
        return min(
            (queue.next_in for queue in found if queue.next_in is not None),
            default=None,
        )


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT during the `with` block. Outside of the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        log.info("stopping on %s", signal.Signals(number).name)
        stop()

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
