"""A consumer as a process of its own, which waits for messages, handles them and stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, duration
from airflow_provider_pgqueue.core.client import run, run_async
from airflow_provider_pgqueue.core.connection import connect, connect_async, pause_after
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.consumer import Consumer
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.loop import Loop
from airflow_provider_pgqueue.core.deadline import obeying
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.core.errors import ConnectionFailed, InUse, PgQueueError, QueuePaused, why_again
from airflow_provider_pgqueue.core.function import check_call
from airflow_provider_pgqueue.core.listener import AsyncConnection, Listener
from airflow_provider_pgqueue.core.message import ReadyQueue
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.signals import stop_on_signals
from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)

_AFTER_NOTHING: Final = 0.1  # seconds until the next poll of a worker that found nothing
_TO_END: Final = 1.0  # seconds that the listener has to close its connection
_AWAY: Final = 30.0  # seconds until the listener tries again where the work got the last connection
# libpq keeps the SQLSTATE of a refused connection to itself.
_NO_ROOM: Final = re.compile(r"too many connections|too many clients|connection slots are reserved")
_AFTER_LOCKED: Final = 1.0  # seconds until the next poll of a worker that found all ready messages locked


class Waker:
    """Wakes a waiting thread. Calls of `wake` while no thread waits count as one call.

    Any thread may call `wake`, and so may a signal handler, even one that interrupts a call of these methods: a
    `threading.Event`, whose lock is not reentrant, would then block forever.
    """

    def __init__(self) -> None:
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Wake the thread that waits, or the next thread that waits."""
        if self._wakes.empty():  # two threads may pass this check at once, which costs a poll that finds nothing
            self._wakes.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for a call of `wake`, at most so many seconds; a call since the last `wait` returns at once."""
        with suppress(Empty):
            self._wakes.get(timeout=seconds)


@dataclass(kw_only=True)
class Worker:
    """Handles the messages of one queue for as long as the process lives.

    A NOTIFY makes it lease at once; without a NOTIFY it polls every `poll_interval`, so it depends neither on NOTIFY
    nor on maintenance. It opens two connections, one to work and one to listen; where the server has only one left, it
    works and polls. It opens them again when they break, when an answer is lost on its way, or when the server
    cannot write, like a standby that is not promoted yet. Over the new connection it settles what it had handled, and
    releases what it had not begun.
    On SIGTERM and SIGINT it finishes the current message, archives what is done, releases the rest, and `run` returns;
    if the connection breaks meanwhile, it tries one more. For a server that does not answer it waits a few seconds.
    `kill -9` loses nothing, because the leases expire.

    InvalidArgument, before anything is leased, for a handler that cannot be called with what it gets.

    :param conninfo: libpq connection string or URL.
    :param consumer: the queue, the handler, the batch size and the length of a lease.
    :param poll_interval: how long it waits between two polls when no notification arrives.
    """

    conninfo: str
    consumer: Consumer
    poll_interval: Duration = 30.0
    counts: Counter[str] = field(init=False, default_factory=Counter)
    _poll_seconds: float = field(init=False)
    _lease: Lease | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _stopping: bool = field(init=False, default=False)
    _stop_waker: Waker = field(init=False, default_factory=Waker)
    _waker: Waker = field(init=False, default_factory=Waker)
    _no_room: asyncio.Event | None = field(init=False, default=None)
    _listening_loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_call(self.consumer.handle, "a message")
        check_call(self.consumer.handle_batch, "a list of messages")
        check({"poll_interval": self.poll_interval}, {"poll_interval": duration(timedelta(0), timedelta(days=366))})
        self._poll_seconds = seconds(self.poll_interval)

    def stop(self) -> None:
        """Make `run` return after the current message. Safe in a signal handler and from other threads."""
        self._stopping = True
        self._stop_waker.wake()
        self._waker.wake()

    def run(self, *, until_empty: bool = False) -> Counter[str]:
        """Handle messages until `stop`, SIGTERM or SIGINT, or with `until_empty` until the queue has none ready.

        Returns how messages ended, and raises HandlerBroken, as `Consumer.drain` does.
        """
        breaker = Breaker(self.consumer.queue_name, self.consumer.give_up_after)
        with stop_on_signals(self.stop), self._listening(until_empty):
            while not self._stopping:
                try:
                    # Check after each reconnection, because the schema may have been upgraded meanwhile.
                    with (
                        self._connect() as conn,
                        obeying(conn, lambda: self._stopping),
                        self._loop(conn, breaker) as loop,
                    ):
                        self._finish_lease(conn)
                        self._serve(conn, loop, until_empty)
                    break
                except (ConnectionFailed, InUse, psycopg.OperationalError) as error:
                    self._failures += 1
                    if _NO_ROOM.search(str(error)):
                        self._give_way()
                    pause = pause_after(self._failures)
                    log.warning("%s; next try in %.1f s", why_again(error), pause)
                    self._stop_waker.wait(pause)
            if self._lease is not None and self._lease.held:
                self._finish_at_last(self._lease)
        return self.counts

    def _connect(self) -> psycopg.Connection[Any]:
        """Return a connection to work on; ConnectionFailed if it takes longer than the last moment of a stop.

        A thread opens it, because the driver does not notice a stop meanwhile.
        """
        opened: SimpleQueue[psycopg.Connection[Any] | Exception] = SimpleQueue()
        wanted = True

        def open_one() -> None:
            try:
                conn = connect(self.conninfo, check_schema=True, application_name="pgqueue worker")
            except Exception as error:
                opened.put(error)
            else:
                opened.put(conn)
                if not wanted:
                    conn.close()

        threading.Thread(target=open_one, name="pgqueue-connect", daemon=True).start()
        last = math.inf
        while time.monotonic() < last:
            try:
                found = opened.get(timeout=0.1)
            except Empty:
                if self._stopping and last == math.inf:
                    last = time.monotonic() + TUNING.last_moment
                continue
            if isinstance(found, Exception):
                raise found
            return found
        wanted = False
        raise ConnectionFailed("the server does not answer, and this worker is told to stop", "Nothing is to be done.")

    def _loop(self, conn: psycopg.Connection[Any], breaker: Breaker) -> Loop:
        return Loop(
            self.consumer,
            conn,
            breaker=breaker,
            counts=self.counts,
            on_lease=self._note_lease,
            on_batch=self._note_success,
        )

    def _serve(self, conn: psycopg.Connection[Any], loop: Loop, until_empty: bool) -> None:
        fruitless = 0
        while not self._stopping:
            before = self.counts.total()
            try:
                loop.drain(stop=lambda: self._stopping)
            except QueuePaused as error:
                # A worker outlives a pause: resume_queue notifies.
                log.info("%s", error)
            self._failures = 0
            if until_empty:
                return
            fruitless = 0 if self.counts.total() > before else fruitless + 1
            if fruitless > 1:
                # A thousand notifications a second, of whichever queue, must not cause a thousand leases a second. The
                # first fruitless drain does not count: the drain before it may have taken the message notified of.
                self._stop_waker.wait(_AFTER_NOTHING)
            # A notification that came during the drain ends this wait at once.
            self._waker.wait(self._until_next(conn, fruitless) if loop.limits_rate else self._poll_seconds)

    def _until_next(self, conn: psycopg.Connection[Any], fruitless: int) -> float:
        """Return the most seconds to wait for a queue with a rate: no NOTIFY says that the next lease may begin."""
        found = run(conn, self._question())
        if any(queue.ready for queue in found):  # since the lease, unless another session has locked what is ready
            return 0.0 if fruitless < 2 else min(_AFTER_LOCKED, self._poll_seconds)
        next_in = _soonest(found)
        return self._poll_seconds if next_in is None else min(next_in.total_seconds(), self._poll_seconds)

    def _finish_lease(self, conn: psycopg.Connection[Any]) -> None:
        """Settle the handled messages of a lease whose connection broke, and release those that were not begun."""
        if self._lease is not None and (held := self._lease.held):
            lease = self._lease
            lease.give_back(conn)
            # Messages that the handler got and that have no outcome stay leased until the lease ends by itself.
            lost = lease.lost.union(message.id for message in lease.held)
            for message in held:
                outcome = lease.handled.get(message.id)
                end = "released" if outcome is None else lease.end(message.id, outcome)
                self.counts["lost" if message.id in lost else end] += 1
            log.info("settled or released %s of the connection that broke", quantity(len(held)))
        self._lease = None

    def _finish_at_last(self, lease: Lease) -> None:
        """Try once to finish a lease whose connection broke, of a worker that is told to stop."""
        try:
            with self._connect() as conn, obeying(conn, lambda: self._stopping):
                self._finish_lease(conn)
        except (PgQueueError, psycopg.Error) as error:
            log.warning(
                "could not settle or release %s (%s): delivered again when the lease ends",
                quantity(len(lease.held)),
                type(error).__name__,
            )

    def _note_lease(self, lease: Lease) -> None:
        self._lease = lease

    def _note_success(self, counts: Counter[str]) -> None:
        # A new connection does not reset this: the pauses must also grow if a server accepts connections but no writes.
        self._failures = 0

    @contextmanager
    def _listening(self, until_empty: bool) -> Iterator[None]:
        if until_empty:
            yield
            return
        # The notification may be for another queue, but a poll before the lease would cost one more round trip.
        listener = Listener(
            partial(connect_async, self.conninfo, application_name="pgqueue listener"),
            self._poll_waiting,
            poll_interval=self._poll_seconds,
            on_notify=self._waker.wake,
        )
        loop = asyncio.new_event_loop()
        self._no_room = asyncio.Event()
        self._listening_loop = loop
        listening = loop.create_task(self._listen(listener, self._no_room))
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
            # The listener may wait for a server that does not answer.
            thread.join(_TO_END)

    async def _listen(self, listener: Listener, no_room: asyncio.Event) -> None:
        """Listen until cancelled, but leave the last connection that the server has to the work."""
        while True:
            waits = {asyncio.create_task(listener.run()), asyncio.create_task(no_room.wait())}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()
                found = await asyncio.gather(*waits, return_exceptions=True)
            if not no_room.is_set():
                raise next(error for error in found if isinstance(error, Exception))
            log.warning("no connection is left to listen: polling every %.0f s", self._poll_seconds)
            await asyncio.sleep(_AWAY)
            no_room.clear()

    def _give_way(self) -> None:
        """Make the listener close its connection, because the server has none left to work on."""
        if self._listening_loop is not None and self._no_room is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._listening_loop.call_soon_threadsafe(self._no_room.set)

    def _run_listener(self, loop: asyncio.AbstractEventLoop, listening: asyncio.Task[None]) -> None:
        try:
            loop.run_until_complete(listening)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            log.warning("not listening (%s): polling every %.0f s", error, self._poll_seconds)
        finally:
            loop.close()

    async def _poll_waiting(self, conn: AsyncConnection) -> timedelta | None:
        found = await run_async(conn, self._question())
        if any(queue.ready for queue in found):
            self._waker.wake()
        return _soonest(found)

    def _question(self) -> verbs.Statement[list[ReadyQueue]]:
        return verbs.scan([self.consumer.queue_name], count_up_to=1)


def _soonest(found: list[ReadyQueue]) -> timedelta | None:
    return min((queue.next_in for queue in found if queue.next_in is not None), default=None)
