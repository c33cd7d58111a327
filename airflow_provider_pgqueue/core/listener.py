"""Waits for work on one connection: LISTEN, look, wait, without relying on any NOTIFY to arrive.

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
_TRAILING_LOOK = 0.25  # seconds: in notify mode `gated` the last publisher of a burst may not have rung
_AFTER_RING = 0.02  # seconds until the look, where the one who was rung for looks at once
# SQLSTATE classes: authorization, no such database, privileges and undefined objects
_PERMANENT: Final = ("28", "3D", "42")


class Listener:
    """Calls `look` each time there may be work, on one connection for any number of waiting consumers.

    A look that takes longer than `deadline` counts as a dead connection, so each look is a heartbeat too. A lost
    connection is opened again, after growing random pauses, and followed by a look. Behind a transaction pooler no
    notification arrives: that is detected and logged once, and the listener polls.

    :param connect: opens an autocommit connection, or gives up by itself: only it knows how many hosts it has to try.
    :param look: queries the database; returns how soon something will become ready, None if that is unknown.
    :param poll_interval: seconds between looks when nothing rings, each shortened at random by up to a tenth.
    :param deadline: seconds that one look may take; None if it has deadlines of its own, and raises after them.
    :param min_gap: least seconds between two looks; all rings in between lead to one look.
    :param on_ring: called at once for each NOTIFY, by a consumer that then looks for work itself. `look` follows a
        little later, once for all rings meanwhile, so that the two do not compete.
    :param channels: what to LISTEN to.
    :param name: who listens, for the log.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection]],
        look: Callable[[AsyncConnection], Awaitable[timedelta | None]],
        *,
        poll_interval: float = 30.0,
        deadline: float | None = 10.0,
        min_gap: float = 0.0,
        on_ring: Callable[[], None] | None = None,
        channels: Sequence[str] = (NEW_MESSAGE, DEAD_MESSAGE),
        name: str = "listener",
    ) -> None:
        self._connect = connect
        self._look = look
        self._poll_interval = poll_interval
        self._deadline = deadline
        self._min_gap = min_gap
        self._on_ring = on_ring
        self._channels = channels
        self._name = name
        self._nudged = asyncio.Event()
        self._warned_of_pooler = False

    def nudge(self) -> None:
        """Look now, for a consumer that has just begun to wait. Call it on the event loop of `run`."""
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
                    # LISTEN first: a message that is committed between a look and a later LISTEN would ring nobody.
                    hears = await self._listen(conn)
                    while True:
                        next_in = await self._look_in_time(conn)
                        # Reset only now: a server that accepts connections but refuses each look deserves the pauses.
                        if failures:
                            log.info("listening again after %s", quantity(failures, "failure"))
                            failures = 0
                        await self._wait(conn, hears, next_in)
            except (psycopg.Error, ConnectionFailed, TimeoutError, OSError) as error:
                if _is_permanent(error):
                    raise translate(error) from error
                failures += 1
                pause = pause_after(failures)
                log.warning("%s: %s; next try in %.1f s", self._name, why_again(error, had_one=had_one), pause)
                await asyncio.sleep(pause)

    async def _listen(self, conn: AsyncConnection) -> bool:
        """LISTEN before the first look; return whether notifications can arrive at all."""
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

    async def _look_in_time(self, conn: AsyncConnection) -> timedelta | None:
        # Cleared before the look, so that a consumer that begins to wait during the look gets another one.
        self._nudged.clear()
        async with asyncio.timeout(self._deadline):
            return await self._look(conn)

    async def _wait(self, conn: AsyncConnection, hears: bool, next_in: timedelta | None) -> None:
        """Return when it is time to look. After a ring this looks itself, and the look that follows it is the last."""
        # The interval varies, so that processes that started together do not look together forever.
        pause = _seconds(next_in, at_most=self._poll_interval * random.uniform(0.9, 1.0))
        started = asyncio.get_running_loop().time()
        rung = await self._rings(conn, hears, pause)
        gap = self._min_gap - (asyncio.get_running_loop().time() - started)
        if gap > 0:
            await asyncio.sleep(gap)
        if not rung:
            return
        if self._on_ring is None:
            next_in = await self._look_in_time(conn)
            await self._rings(conn, hears, _seconds(next_in, at_most=_TRAILING_LOOK))
        else:
            # Whoever was rung for looks first; more rings go to it, and do not end the pause.
            await self._bell(conn, _AFTER_RING, stop_after=None)
            next_in = await self._look_in_time(conn)
            await self._bell(conn, _seconds(next_in, at_most=_TRAILING_LOOK), stop_after=None)

    async def _rings(self, conn: AsyncConnection, hears: bool, pause: float) -> bool:
        """Wait for a NOTIFY, a nudge or the end of the pause; return whether a NOTIFY came."""
        if hears and self._on_ring is not None:
            # Nobody nudges, and whoever was rung for waits for the interpreter until this thread waits again.
            return await self._bell(conn, pause)
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._nudged.wait())}
        bell = asyncio.create_task(self._bell(conn, pause)) if hears else None
        if bell is not None:
            waits.add(bell)
        try:
            await asyncio.wait(
                waits,
                # The bell ends by itself at the end of the pause, so the second more is only for one that does not.
                timeout=pause + 1.0 if hears else pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        if bell is None or bell.cancelled():
            return False
        return bell.result()

    async def _bell(self, conn: AsyncConnection, pause: float, stop_after: int | None = 1) -> bool:
        """Wait for so many notifications or the end of the pause, and pass them on; return whether one came."""
        rung = False
        # The payload is never read: anybody may send anything on a channel.
        async with contextlib.aclosing(conn.notifies(timeout=pause, stop_after=stop_after)) as notifications:
            async for _ in notifications:
                rung = True
                if self._on_ring is not None:
                    self._on_ring()
        return rung


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
