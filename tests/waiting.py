"""The one place where tests poll. Each wait is for something that the test can name; nothing waits for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")
PATIENCE = 60.0  # seconds: a loaded machine is slow, and a test that fails is the only one that waits so long
_PAUSE = 0.02


def until(look: Callable[[], T], timeout: float = PATIENCE, what: str = "the condition") -> T:
    """Return the first true value of `look`; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what}"
        time.sleep(_PAUSE)
    return found


async def async_until(look: Callable[[], T], timeout: float = PATIENCE, what: str = "the condition") -> T:
    """Return the first true value of `look`, and let other coroutines run meanwhile; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what}"
        await asyncio.sleep(_PAUSE)
    return found


def until_leases_expire(conn: psycopg.Connection[Any]) -> None:
    """Return when no message and no dead message is leased any more, by the clock of the database."""
    until(lambda: _none(conn, "lock_expires_at > clock_timestamp()"), what="the leases to expire")


def until_waiting(conn: psycopg.Connection[Any], condition: str = "wait_event_type = 'Lock'") -> None:
    """Return when a session of this database meets a condition on pg_stat_activity: by default, waits for a lock."""
    question = f"SELECT FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    until(lambda: conn.execute(question.encode()).rowcount, what=f"a session with {condition}")


def _none(conn: psycopg.Connection[Any], condition: str) -> bool:
    return conn.execute(f"SELECT FROM messages.message WHERE {condition}".encode()).rowcount == 0
