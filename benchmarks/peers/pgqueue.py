"""Ours: the schema `messages` of this repository."""

from __future__ import annotations

from typing import Final

from airflow_provider_pgqueue.core.migrations import migrate
from benchmarks.measure import BODY
from benchmarks.server import Connection

NAME: Final = "pgqueue"


def install(conn: Connection) -> None:
    """Install the schema and one queue."""
    migrate(conn)
    conn.execute("SELECT messages.create_queue('bench')")


def empty(conn: Connection) -> None:
    """Empty the queue and its archive."""
    conn.execute("TRUNCATE messages.message, messages.message_archive")


def add(conn: Connection, messages: int) -> None:
    """Put messages in with one plain INSERT."""
    conn.execute(
        "INSERT INTO messages.message (queue_name, message) SELECT 'bench', %s::jsonb FROM generate_series(1, %s)",
        [BODY, messages],
    )


def analyse(conn: Connection) -> None:
    """Do what autovacuum will have done to a queue of this size."""
    conn.execute("VACUUM (ANALYZE) messages.message")


def count(conn: Connection) -> int:
    """Count what is in the queue."""
    row = conn.execute("SELECT count(*) FROM messages.message").fetchone()
    return int(row[0]) if row else 0


def lease_archive(batch: int) -> str:
    """Two transactions: lease a batch, archive it."""
    return (
        "SELECT (array_agg(lock_token))[1] AS token, array_agg(id) AS ids"
        f" FROM messages.lease('bench', {batch}) \\gset\n"
        "SELECT count(*) FROM messages.archive(:token, :ids);\n"
    )


def consume(batch: int) -> str:
    """One transaction: take a batch out and archive it."""
    return f"SELECT count(*) FROM messages.consume('bench', {batch});\n"


def publish() -> str:
    """Publish one message; its NOTIFY goes out with the commit."""
    return "SELECT messages.publish('bench', :body);\n"
