"""Waits for work on one connection: LISTEN, poll, wait, without relying on any NOTIFY to arrive.

Work is found in the tables, not in the notification: after each connect, after each NOTIFY, when a delay or a lease
ends, and every poll interval in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.channels import DEAD_MESSAGE, NEW_MESSAGE
from airflow_provider_pgqueue.core.connection import pause_after
from airflow_provider_pgqueue.core.errors import ConnectionFailed, PgQueueError, translate, why_again
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

log = logging.getLogger(__name__)

AsyncConnection = psycopg.AsyncConnection[Any]
_PATIENCE: Final = 10.0  # seconds that LISTEN may take
_TRAILING_POLL = 0.25  # seconds: in notify mode `gated` the last publisher of a burst may send no notification
_AFTER_NOTIFY = 0.02  # seconds until the poll, so that the notified consumer leases first
# SQLSTATE classes: authorization, no such database, privileges and undefined objects
_PERMANENT: Final = ("28", "3D", "42")


class Listener:
    """Calls `poll` each time there may be work, on one connection for any number of waiting consumers.

    A poll that takes longer than `deadline` counts as a dead connection, so each poll is a heartbeat too. A lost
    connection is opened again, after growing random pauses, and followed by a poll. Behind a transaction pooler no
    notification arrives: that is detected and logged once, and the listener polls.

    :param connect: opens an autocommit connection, or gives up by itself: only it knows how many hosts it has to try.
    :param poll: queries the database; returns how soon something will become ready, None if that is unknown.
    :param poll_interval: seconds between polls without a notification, each shortened at random by up to a tenth.
    :param deadline: seconds that one poll may take; None if `poll` has deadlines of its own, and raises after them.
    :param min_gap: minimum seconds between two polls; all notifications in between lead to one poll.
    :param on_notify: called at once for each NOTIFY, to wake a consumer that leases by itself. `poll` follows a little
        later, once for all notifications meanwhile, so that the two do not compete.
    :param channels: the channels to LISTEN on.
    :param name: the name of the listener in the log.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection]],
        poll: Callable[[AsyncConnection], Awaitable[timedelta | None]],
        *,
        poll_interval: float = 30.0,
        deadline: float | None = 10.0,
        min_gap: float = 0.0,
        on_notify: Callable[[], None] | None = None,
        channels: Sequence[str] = (NEW_MESSAGE, DEAD_MESSAGE),
        name: str = "listener",
    ) -> None:
        self._connect = connect
        self._poll = poll
        self._poll_interval = poll_interval
        self._deadline = deadline
        self._min_gap = min_gap
        self._on_notify = on_notify
        self._channels = channels
        self._name = name
        self._nudged = asyncio.Event()
        self._warned_of_pooler = False

    def nudge(self) -> None:
        """Poll now, for a consumer that has just begun to wait. Call this on the event loop of `run`."""
        self._nudged.set()

    async def run(self) -> None:
        """Listen until cancelled.

        Raises only errors that a retry cannot fix: refused credentials, a missing database or privilege, an error of
        the schema.
        """
        failures, had_one = 0, False
        while True:
            try:
                async with await self._connect() as conn:
                    had_one = True
                    # LISTEN first: the NOTIFY of a message committed between a poll and a later LISTEN would be lost.
                    receives = await self._listen(conn)
                    while True:
                        next_in = await self._poll_in_time(conn)
                        # Reset only now: the pauses must also grow if a server accepts connections but refuses polls.
                        if failures:
                            log.info("listening again after %s", quantity(failures, "failure"))
                            failures = 0
                        await self._wait(conn, receives, next_in)
            except (psycopg.Error, ConnectionFailed, TimeoutError, OSError) as error:
                if _is_permanent(error):
                    raise translate(error) from error
                failures += 1
                pause = pause_after(failures)
                log.warning("%s: %s; next try in %.1f s", self._name, why_again(error, had_one=had_one), pause)
                await asyncio.sleep(pause)

    async def _listen(self, conn: AsyncConnection) -> bool:
        """LISTEN before the first poll; return whether notifications can arrive at all."""
        async with asyncio.timeout(_PATIENCE):
            ((pid,),) = await (await conn.execute(query("backend_pid"))).fetchall()
            # A pooler in transaction mode makes up the process id that it gives to a client.
            if pid != conn.info.backend_pid:
                if not self._warned_of_pooler:
                    self._warned_of_pooler = True
                    log.warning(
                        "a connection pooler is in between, so no notifications arrive: polling every %.0f s. "
                        "To be woken, give a direct connection (listen_conn_id in Airflow, else another DSN).",
                        self._poll_interval,
                    )
                return False
            for channel in self._channels:
                await conn.execute(f"LISTEN {channel}".encode())
        return True

    async def _poll_in_time(self, conn: AsyncConnection) -> timedelta | None:
        # Cleared before the poll, so that a consumer that begins to wait during the poll gets another one.
        self._nudged.clear()
        async with asyncio.timeout(self._deadline):
            return await self._poll(conn)

    async def _wait(self, conn: AsyncConnection, receives: bool, next_in: timedelta | None) -> None:
        """Wait until the next poll is due. A notification leads to a poll here, and to a last one when this returns."""
        # The interval varies, so that processes that started together do not poll together forever.
        pause = _seconds(next_in, at_most=self._poll_interval * random.uniform(0.9, 1.0))
        started = asyncio.get_running_loop().time()
        notified = await self._notified(conn, receives, pause)
        gap = self._min_gap - (asyncio.get_running_loop().time() - started)
        if gap > 0:
            await asyncio.sleep(gap)
        if not notified:
            return
        if self._on_notify is None:
            next_in = await self._poll_in_time(conn)
            await self._notified(conn, receives, _seconds(next_in, at_most=_TRAILING_POLL))
        else:
            # The notified consumer leases first. Further notifications are passed on to it and do not end the pause.
            await self._receive(conn, _AFTER_NOTIFY, stop_after=None)
            next_in = await self._poll_in_time(conn)
            await self._receive(conn, _seconds(next_in, at_most=_TRAILING_POLL), stop_after=None)

    async def _notified(self, conn: AsyncConnection, receives: bool, pause: float) -> bool:
        """Wait for a NOTIFY, a nudge or the end of the pause; return whether a NOTIFY came."""
        if receives and self._on_notify is not None:
            # Nothing calls `nudge` here, and the notified consumer runs only once this thread waits again.
            return await self._receive(conn, pause)
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._nudged.wait())}
        receiving = asyncio.create_task(self._receive(conn, pause)) if receives else None
        if receiving is not None:
            waits.add(receiving)
        try:
            await asyncio.wait(
                waits,
                # `_receive` ends by itself after the pause; the extra second is for a connection that hangs.
                timeout=pause + 1.0 if receives else pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        if receiving is None or receiving.cancelled():
            return False
        return receiving.result()

    async def _receive(self, conn: AsyncConnection, pause: float, stop_after: int | None = 1) -> bool:
        """Pass notifications on, until `stop_after` of them came or the pause is over; return whether any came."""
        notified = False
        # The payload is never read: any session may send any payload on a channel.
        async with contextlib.aclosing(conn.notifies(timeout=pause, stop_after=stop_after)) as notifications:
            async for _ in notifications:
                notified = True
                if self._on_notify is not None:
                    self._on_notify()
        return notified


def _seconds(next_in: timedelta | None, *, at_most: float) -> float:
    """Return the seconds until something becomes ready, where that is known and soon."""
    return at_most if next_in is None else min(at_most, max(next_in.total_seconds(), 0.001))


def _is_permanent(error: Exception) -> bool:
    if isinstance(error, ConnectionFailed):
        return isinstance(error.__cause__, psycopg.Error) and _is_permanent(error.__cause__)
    if isinstance(error, PgQueueError):
        return True
    if not isinstance(error, psycopg.Error) or isinstance(translate(error), ConnectionFailed):
        return False
    return (error.sqlstate or "")[:2] in _PERMANENT
