"""One listening connection for all tasks and watchers that wait on one Airflow connection in one event loop.

A thousand deferred tasks and watchers of a triggerer cost one session and, while nothing happens, three or four short
statements a minute.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Hashable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.channels import DEAD_MESSAGE, NEW_MESSAGE
from airflow_provider_pgqueue.core.client import run_async
from airflow_provider_pgqueue.core.connection import connect_async
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    InvalidMessage,
    PgQueueError,
    QueueError,
)
from airflow_provider_pgqueue.core.listener import Listener
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.thread import in_thread
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.telemetry.telemetry import record_notification
from airflow_provider_pgqueue.triggers.waiter import Waiter
from airflow_provider_pgqueue.triggers.watch import ConsumerWatch, Notification, NotifiedTimes, Watch

if TYPE_CHECKING:
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

T = TypeVar("T")
log = logging.getLogger(__name__)
_REFUSED: Final = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|FATAL: .* does not exist")
_WRONG_TYPE: Final = ("42883", "42846", "42804")  # undefined function, cannot coerce, datatype mismatch
_LONGEST: Final = 10.0  # seconds that the first connection waits for its arguments before a warning
_RAREST: Final = 300.0  # seconds between two tries of a query that takes too long
_UNKNOWN_AGAIN: Final = 2.0  # seconds until the next poll for a queue that does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTimes:
    """How long a hub waits, in seconds.

    :param patience: for the arguments of a lost connection, before it uses the previous arguments.
    :param min_gap: between two polls.
    :param deadline: for the result of one query.
    :param linger: before it closes the connection when the last waiter has left: the next may come soon.
    :param doubt_again: until it checks again whether a queue still exists and is not paused.
    """

    patience: float = 2.0
    min_gap: float = 0.2
    deadline: float = 10.0
    linger: float = 5.0
    doubt_again: float = 60.0


# Each dag.test() and each test has a loop of its own, and a connection belongs to its loop.
_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Hub]] = WeakKeyDictionary()


async def notification_stream(conn_id: str, watch: Watch, times: HubTimes = HubTimes()) -> AsyncGenerator[Notification]:
    """Yield a notification each time that there is work for the watch, until the generator is closed.

    Work that is already there leads to a notification, too. A lost connection is opened again, followed by a poll.
    Raises errors that a retry cannot fix, such as an unknown connection, or a password that is refused from the
    beginning. A password that is refused later is being changed, so the next try asks Airflow for it again.

    :param times: the times of the hub, if this watch is its first.
    """
    hub = _HUBS.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, _Hub(conn_id, times))
    waiter = hub.join(watch)
    try:
        while True:
            notification = await waiter.next()
            record_notification(notification)
            yield notification
    finally:
        hub.leave(waiter)


@dataclass(slots=True)
class _Pace:
    """Schedules the next query: after a pause as long as the last one took, or longer after failures."""

    min_gap: float
    failures: int = 0
    at: float = -math.inf

    def record(self, took: float, now: float, at_least: float) -> float:
        """Return the pause after a query that took so long."""
        pause = max(min(took * 2.0 ** min(self.failures, 10), _RAREST), at_least)
        # The polls of the listener are `min_gap` apart in any case.
        self.at = now + pause if pause > self.min_gap else -math.inf
        return pause


class _Hub:
    def __init__(self, conn_id: str, times: HubTimes) -> None:
        self._conn_id = conn_id
        self._times = times
        self._waiters: dict[Waiter, None] = {}  # in the order in which they came
        self._notified: dict[str, NotifiedTimes] = {}
        self._paces: dict[Hashable, _Pace] = {}
        self._listener = Listener(
            self._connect,
            self._poll,
            min_gap=times.min_gap,
            deadline=None,
            channels=(NEW_MESSAGE, DEAD_MESSAGE),
            name=f"Airflow connection {conn_id!r}",
        )
        self._known: dict[str, Any] | None = None
        self._has_worked = False
        self._refused = False
        self._asking: asyncio.Future[dict[str, Any]] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._closing: asyncio.TimerHandle | None = None

    def join(self, watch: Watch) -> Waiter:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if isinstance(watch, ConsumerWatch):
            watch.share(self._notified)
        waiter = Waiter(watch, self._times.doubt_again)
        self._waiters[waiter] = None
        if self._pump is None:
            # An empty context keeps the log lines of the hub out of the log of the task that came first.
            self._pump = asyncio.get_running_loop().create_task(
                self._listener.run(), name=f"pgqueue hub of {self._conn_id}", context=contextvars.Context()
            )
            self._pump.add_done_callback(self._ended)
        else:
            # There may be work already, and the next poll may be half a minute away.
            self._listener.nudge()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        if not self._waiters and self._pump is not None and self._closing is None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to do
                self._closing = self._pump.get_loop().call_later(self._times.linger, self._close)

    def _close(self) -> None:
        self._forget()
        if self._pump is not None:
            self._pump.cancel()

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """Fail all waiters, because the listener gave up or was cancelled with its loop."""
        self._forget()
        if self._asking is not None:
            self._asking.cancel()
        error = None if pump.cancelled() else pump.exception()
        for waiter in self._waiters:
            waiter.fail(error or asyncio.CancelledError())

    def _forget(self) -> None:
        """Leave the registry, so that the next watch gets a new hub."""
        hubs = _HUBS.get(asyncio.get_running_loop(), {})
        if hubs.get(self._conn_id) is self:
            del hubs[self._conn_id]

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        """Return a new connection; if that fails, let each waiter log the reason."""
        try:
            conn = await self._open()
        except (psycopg.Error, ConnectionFailed, TimeoutError, OSError) as error:
            reason = "Airflow does not say what it is" if isinstance(error, TimeoutError) else str(error)
            for waiter in self._waiters:
                waiter.see_away(f"Airflow connection {self._conn_id!r}: {reason}")
            raise
        for waiter in self._waiters:
            waiter.see_away(None)
        return conn

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        arguments = await self._arguments()
        try:
            conn = await connect_async(**arguments)
        except InvalidArgument as error:
            error.at(f"Airflow connection {self._conn_id!r}")
            if not self._has_worked:
                raise
            # The Airflow connection is being changed, and may be corrected.
            self._known = None
            raise ConnectionFailed(error.problem, error.fix) from error
        except ConnectionFailed as error:
            if not _REFUSED.search(str(error)):
                raise
            if self._has_worked:
                # A password is being changed: each further try waits for the current Airflow connection, until the
                # server and Airflow agree.
                self._known = None
                if not self._refused:
                    log.warning("Airflow connection %r is refused, trying on: %s", self._conn_id, error)
                self._refused = True
                raise
            # libpq hides the SQLSTATE of a refused connection, and the listener gives up only on an SQLSTATE.
            raise error from psycopg.errors.InvalidAuthorizationSpecification(str(error))
        self._has_worked, self._refused = True, False
        return conn

    async def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the connection, or the previous arguments if Airflow does not return them soon.

        A triggerer asks its supervisor. While Airflow's own database is down, the supervisor replies late or not at
        all, and then reports that there is no such connection.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask_for_arguments())
            # Retrieve the error, which asyncio would log if no waiter is left to do so.
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        await asyncio.wait({self._asking}, timeout=self._times.patience if self._known else _LONGEST)
        if self._known:
            return self._known
        if not self._asking.done():
            raise TimeoutError
        return self._asking.result()

    async def _ask_for_arguments(self) -> dict[str, Any]:
        # In a thread, because the first call imports much, and must not block the event loop of the triggerer.
        hook = await in_thread(_make_hook, self._conn_id)
        self._known = await hook.alisten_arguments()
        return self._known

    async def _poll(self, conn: psycopg.AsyncConnection[Any]) -> timedelta | None:
        """Run one query for all watches with the same `question`, and return how soon to poll again."""
        asking: defaultdict[Hashable, list[Waiter]] = defaultdict(list)
        for waiter in self._waiters:
            asking[waiter.question].append(waiter)
        self._paces = {question: self._paces.get(question) or _Pace(self._times.min_gap) for question in asking}
        # Queries that were too slow go last.
        order = sorted(asking, key=lambda one: self._paces[one].failures)
        now = asyncio.get_running_loop().time()
        due = [one for one in order if self._paces[one].at <= now]
        if asking and not due:
            # This poll must still check that the connection is alive.
            async with asyncio.timeout(self._times.deadline):
                await conn.execute(query("backend_pid"))
        wishes = [timedelta(seconds=pace.at - now) for pace in self._paces.values() if pace.at > now]
        wishes += [wish for one in due for wish in await self._ask_in_turn(conn, asking[one], self._paces[one])]
        return min(wishes, default=None)

    async def _ask_in_turn(
        self, conn: psycopg.AsyncConnection[Any], asked: list[Waiter], pace: _Pace
    ) -> list[timedelta]:
        """Run one query and return how soon to poll again. A query that is too slow is a warning, not an error."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            wishes = await self._ask(conn, asked)
        except (TimeoutError, ConnectionFailed) as error:
            if not _took_too_long(conn, error):
                raise
            pace.failures += 1
            pause = pace.record(clock() - began, clock(), asked[0].watch.asks_every)
            for waiter in asked:
                waiter.see_slow(clock() - began, pause)
            return [timedelta(seconds=pause)]
        pace.failures = 0
        pace.record(clock() - began, clock(), asked[0].watch.asks_every)
        return wishes

    async def _ask(self, conn: psycopg.AsyncConnection[Any], asked: list[Waiter]) -> list[timedelta]:
        """Run one query, pass the rows to its waiters, and return how soon each of them needs the next poll."""
        try:
            rows = await self._in_time(conn, asked[0].watch.ask([waiter.watch for waiter in asked]))
            unknown = await self._any_unknown(conn, asked)
        except Exception as error:
            if not _is_about_arguments(error):
                raise
            if len(asked) == 1:
                self._fail(asked[0], error)
                return []
            # By halves, so that only the waiter with the bad argument fails.
            half = len(asked) // 2
            return await self._ask(conn, asked[:half]) + await self._ask(conn, asked[half:])
        found = defaultdict(list)
        for row in rows:
            found[asked[0].watch.key_of(row)].append(row)
        wishes = [row.next_in for row in rows if getattr(row, "next_in", None)]
        now = asyncio.get_running_loop().time()
        for waiter in asked:
            try:
                waiter.receive([row for key in waiter.watch.keys for row in found[key]], now)
                wishes.append(timedelta(seconds=waiter.watch.poll_in))
            except Exception as error:
                self._fail(waiter, error)
        return wishes + ([timedelta(seconds=_UNKNOWN_AGAIN)] if unknown else [])

    async def _any_unknown(self, conn: psycopg.AsyncConnection[Any], asked: list[Waiter]) -> bool:
        """Return whether a waiter waits for a missing queue; each warns once of a missing or a paused queue."""
        now = asyncio.get_running_loop().time()
        doubted = [waiter for waiter in asked if waiter.doubts(now)]
        if not doubted:
            return False
        ask = verbs.closed_queues({waiter.watch.queue_name for waiter in doubted})
        closed = {one.queue_name: one for one in await self._in_time(conn, ask)}
        for waiter in doubted:
            waiter.see_queue(closed.get(waiter.watch.queue_name), now)
        return any(not one.paused for one in closed.values())

    async def _in_time(self, conn: psycopg.AsyncConnection[Any], question: Statement[T]) -> T:
        """Return the result of one query.

        After the deadline the driver cancels the query, and closes a connection that is dead.
        """
        async with asyncio.timeout(self._times.deadline):
            return await run_async(conn, question)

    def _fail(self, waiter: Waiter, error: BaseException) -> None:
        """Fail one waiter; the others continue."""
        self._waiters.pop(waiter, None)
        waiter.fail(error)


def _took_too_long(conn: psycopg.AsyncConnection[Any], error: Exception) -> bool:
    """Return whether the deadline or statement_timeout cancelled a query, and the connection is still sound."""
    cancelled = isinstance(error, TimeoutError) or isinstance(error.__cause__, psycopg.errors.QueryCanceled)
    return cancelled and conn.pgconn.transaction_status == TransactionStatus.IDLE


def _is_about_arguments(error: Exception) -> bool:
    """Return whether an error comes from the arguments of a watch, not from connection, server or schema."""
    if isinstance(error, PgQueueError):
        return isinstance(error, InvalidArgument | InvalidMessage | QueueError)
    if isinstance(error, psycopg.Error):
        # Without an SQLSTATE the driver refused a value before it was sent.
        refused = isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
        return refused and (error.sqlstate is None or error.sqlstate.startswith("22") or error.sqlstate in _WRONG_TYPE)
    return not isinstance(error, OSError | TimeoutError)


def _make_hook(conn_id: str) -> PgQueueHook:
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    return PgQueueHook(conn_id)
