"""Dead messages of another time than now, and the end of messages that were requeued."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.archive import without_beginning


def died_at(conn: psycopg.Connection[Any], id_: int, moment: str) -> None:
    """Let a dead message have died at another time, also before the archive began."""
    without_beginning(conn)
    conn.execute("UPDATE messages.message_archive SET archived_at = %s WHERE id = %s", [moment, id_])
    conn.execute("UPDATE messages.dead_message SET archived_at = %s WHERE id = %s", [moment, id_])


@contextmanager
def handling(conn: psycopg.Connection[Any], result: str = "success") -> Iterator[None]:
    """Finish what comes into the queue while open, in a thread that the notification wakes."""
    over = threading.Event()
    conn.execute("LISTEN messages")

    def handle() -> None:
        while not over.is_set():
            conn.execute(
                "SELECT messages.archive(lock_token, ARRAY[id], %s) FROM messages.lease('orders', 100)", [result]
            )
            list(conn.notifies(timeout=0.05, stop_after=1))

    thread = threading.Thread(target=handle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
