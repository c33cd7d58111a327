"""The one place where tests poll. Each wait is for something that the test can name; nothing waits for time to pass."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")
PATIENCE = 60.0  # seconds: a loaded machine is slow, and a test that fails is the only one that waits so long
LONGEST_STATEMENT = "5min"  # for each session of each server of the tests; pyproject.toml limits each test
_PAUSE = 0.02
_OTHER_WRITERS = """
    SELECT FROM pg_stat_activity
     WHERE backend_xid IS NOT NULL AND (datname IS DISTINCT FROM current_database() OR backend_type <> 'client backend')
"""


def until(
    look: Callable[[], T],
    timeout: float = PATIENCE,
    what: str = "the condition",
    *,
    pause: float = _PAUSE,
    process: subprocess.Popen[Any] | None = None,
    tell: Callable[[], object] = str,
) -> T:
    """Return the first true value of `look`; fail after `timeout` seconds, or when the process that it needs ended.

    :param pause: seconds between two looks.
    :param tell: returns what the failure says next to what was waited for.
    """
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what} {tell()}"
        assert process is None or process.poll() is None, f"{what} needs a process that ended"
        time.sleep(pause)
    return found


async def async_until_still(look: Callable[[], T], seconds: float) -> T:
    """Return the value of `look` when it was the same for so many seconds; fail if it does not come to rest."""
    value, since = look(), time.monotonic()
    deadline = since + PATIENCE
    while time.monotonic() < since + seconds:
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for rest"
        await asyncio.sleep(_PAUSE)
        if (now := look()) != value:
            value, since = now, time.monotonic()
    return value


async def async_until(look: Callable[[], T], timeout: float = PATIENCE, what: str = "the condition") -> T:
    """Return the first true value of `look`, and let other coroutines run meanwhile; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what}"
        await asyncio.sleep(_PAUSE)
    return found


def until_leases_expire(conn: psycopg.Connection[Any]) -> None:
    """Return when no message is leased any more, by the clock of the database."""
    until(lambda: not _messages(conn, "lock_expires_at > clock_timestamp()"), what="the leases to expire")


def until_past(conn: psycopg.Connection[Any], moment: datetime | None) -> None:
    """Return when a time has passed, such as the end that a lease had at first, by the clock of the database."""
    until(lambda: conn.execute("SELECT WHERE clock_timestamp() > %s", [moment]).rowcount, what=f"{moment}")


def until_a_message_expires(conn: psycopg.Connection[Any]) -> None:
    """Return when a message has expired, by the clock of the database."""
    until(lambda: _messages(conn, "expires_at <= clock_timestamp()"), what="a message to expire")


def until_waiting(
    conn: psycopg.Connection[Any], condition: str = "wait_event_type = 'Lock'", *, sessions: int = 1
) -> None:
    """Return when sessions of this database meet a condition on pg_stat_activity: by default, wait for a lock."""
    question = f"SELECT FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    until(lambda: conn.execute(question.encode()).rowcount >= sessions, what=f"{sessions} with {condition}")


def until_nobody_else_writes(conn: psycopg.Connection[Any]) -> None:
    """Return when no other database of the server and no autovacuum writes: they would hold the archive's log back.

    Whoever begins then is younger than all that the test wrote.
    """
    until(lambda: not conn.execute(_OTHER_WRITERS).rowcount, what="those who write in other databases")


def until_ended(conn: psycopg.Connection[Any]) -> None:
    """Return when the server has ended this session, as it ends all of them after one was killed: it recovers then."""
    with suppress(psycopg.OperationalError):
        until(lambda: conn.execute("SELECT") is None, what="the end of the session")


def heard(listener: psycopg.Connection[Any]) -> list[str]:
    """Return for which messages a session was notified until now, by a notification that ends them."""
    listener.execute("NOTIFY new_message, 'the end'")
    return list(takewhile("the end".__ne__, (one.payload for one in listener.notifies(timeout=PATIENCE))))


def _messages(conn: psycopg.Connection[Any], condition: str) -> int:
    return conn.execute(f"SELECT FROM messages.message WHERE {condition}".encode()).rowcount
