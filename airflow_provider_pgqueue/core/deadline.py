"""Ends the wait for an answer that will not come.

Where a proxy, a NAT or a firewall forgets a connection, its packets are confirmed or lost in silence, and neither
keepalives nor time-outs of TCP say so. How long an answer may take is unknown, too: a statement may wait for a lock, or
work for an hour. So after a few seconds another session checks whether the server still works on the statement.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]
_TICK: Final = 0.25
_DIRECT: Final[WeakKeyDictionary[Connection, bool]] = WeakKeyDictionary()
_STOPS: Final[WeakKeyDictionary[Connection, _Stop]] = WeakKeyDictionary()
_WAITS: Final[set[_Wait]] = set()
_starting = threading.Lock()
_thread: threading.Thread | None = None


@dataclass(slots=True, eq=False)
class _Stop:
    """The request that a consumer stops, and the time since which it is known."""

    told: Callable[[], bool]
    since: float | None = None

    def is_told(self) -> bool:
        """Return whether the consumer has to stop; also if `told` raises, as it then raises in the consumer too."""
        try:
            return self.told()
        except BaseException:
            # This thread serves the whole process, so it must survive the error.
            return True


@dataclass(slots=True, eq=False)
class _Wait:
    conn: Connection
    limit: float | None
    began: float
    asks_at: float

    def too_long(self, now: float) -> str | None:
        """Return why the wait has to end now."""
        if self.limit is not None and now - self.began >= self.limit:
            return f"no answer for {self.limit:.0f} s"
        stop = _STOPS.get(self.conn)
        if stop is None:
            return None
        if stop.since is None and stop.is_told():
            stop.since = now
        if stop.since is not None and now - stop.since >= TUNING.last_moment:
            return "no answer, and this consumer is told to stop"
        if now - self.began >= TUNING.longest_wait and _DIRECT.get(self.conn) is False:
            return f"no answer for {TUNING.longest_wait:.0f} s through a pooler"
        return None


def begin_wait(conn: Connection, limit: float | None = None) -> _Wait:
    """Record that a wait for an answer begins; pass the result to `end_wait`.

    If the session has been idle for so long that its answer must be lost, or the server no longer knows the session,
    the socket is shut down, and the waiting call raises OperationalError. The same happens after `limit` seconds, after
    the last moment of a consumer that is told to stop, and after a minute where a pooler hides the consumer's session.
    """
    now = time.monotonic()
    wait = _Wait(conn, limit, now, now + TUNING.silent_after)
    _WAITS.add(wait)
    # Read after the wait was added: the thread checks for waits once more after it has recorded that it ends.
    if _thread is None:
        _start()
    return wait


def end_wait(wait: _Wait) -> None:
    """Record that the answer came, or that the wait for it ended."""
    _WAITS.discard(wait)


@contextmanager
def within(conn: Connection, seconds: float) -> Iterator[None]:
    """Let no answer in this block take longer than so many seconds from its beginning."""
    wait = begin_wait(conn, seconds)
    try:
        yield
    finally:
        end_wait(wait)


def know(conn: Connection, *, direct: bool) -> None:
    """Record whether a connection is direct: behind a pooler no other session can check what became of a statement."""
    _DIRECT[conn] = direct


@contextmanager
def obeying(conn: Connection, stop: Callable[[], bool]) -> Iterator[None]:
    """Limit each wait for an answer to the last moment of the consumer once `stop` returns True."""
    before, _STOPS[conn] = _STOPS.get(conn), _Stop(stop)
    try:
        yield
    finally:
        if before is None:
            del _STOPS[conn]
        else:
            _STOPS[conn] = before


def end_thread() -> None:
    """Wait for the end of the polling thread, in a process that is about to fork and waits for no answer."""
    if (thread := _thread) is not None:
        thread.join()


def _start() -> None:
    global _thread
    with _starting:
        if _thread is None:
            _thread = _spawn(_poll)


def _spawn(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a thread with all signals blocked: it would get those that all other threads block, and end the process."""
    thread = threading.Thread(target=target, args=arguments, name="pgqueue-deadline", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def _poll() -> None:
    """End the waits that take too long, until no wait is left."""
    global _thread
    me = threading.current_thread()
    while True:
        time.sleep(_TICK)
        now = time.monotonic()
        for wait in tuple(_WAITS):
            status = wait.conn.pgconn.transaction_status
            if status == TransactionStatus.UNKNOWN:  # it is closed
                _WAITS.discard(wait)
            if status != TransactionStatus.ACTIVE:
                continue
            if reason := wait.too_long(now):
                _cut(wait, reason)
            elif now >= wait.asks_at and _DIRECT.get(wait.conn):
                wait.asks_at = now + 2 * TUNING.silent_after
                # In a thread of its own, because the way to the server may be silent, too.
                _spawn(_ask, wait)
        if not _WAITS:
            _thread = None
            if not _WAITS:
                return
            # A wait began meanwhile, and may have started another thread.
            with _starting:
                if _thread is not None:
                    return
                _thread = me


def _ask(wait: _Wait) -> None:
    """End a wait if the session has been idle for some seconds, or is gone."""
    info = wait.conn.info
    with suppress(psycopg.Error, OSError):
        # The same server, where a name stands for several.
        given: dict[str, Any] = info.get_parameters() | {"connect_timeout": "5", "application_name": "pgqueue"}
        if info.hostaddr and not info.host.startswith("/"):
            given["hostaddr"], given["host"] = info.hostaddr, info.host
        given["port"] = info.port
        with psycopg.connect(autocommit=True, password=info.password or None, **given) as conn:
            mine = begin_wait(conn, TUNING.silent_after)
            try:
                row = conn.execute(query("session_idle"), [info.backend_pid]).fetchone()
            finally:
                end_wait(mine)
        waited = f"no answer for {time.monotonic() - wait.began:.0f} s"
        if row is None:
            _cut(wait, f"{waited}, and the server does not know the session any more")
        elif row[0] is not None and row[0].total_seconds() >= TUNING.silent_after:
            _cut(wait, f"{waited}, and the session has been idle for {row[0].total_seconds():.0f} s")


def _cut(wait: _Wait, reason: str) -> None:
    """Shut down the socket, so that the waiting call raises an error."""
    if wait not in _WAITS:  # the answer came meanwhile
        return
    _WAITS.discard(wait)
    log.warning("closing a connection: %s", reason)
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(wait.conn.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)


def _forget() -> None:
    """Reset the state in a forked child, which has only the thread that forked."""
    global _thread, _starting
    _thread, _starting = None, threading.Lock()
    _WAITS.clear()


os.register_at_fork(after_in_child=_forget)
