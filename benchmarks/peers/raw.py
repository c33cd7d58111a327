"""The limit: a table of three columns, and a DELETE that nobody can recover from after a crash of the consumer."""

from __future__ import annotations

from typing import Final

from benchmarks.measure import BODY
from benchmarks.server import Connection

NAME: Final = "raw"


def install(conn: Connection) -> None:
    """Make the table."""
    conn.execute(
        "CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " created_at timestamptz NOT NULL DEFAULT now(), message jsonb NOT NULL)"
    )


def empty(conn: Connection) -> None:
    """Empty the queue."""
    conn.execute("TRUNCATE raw")


def add(conn: Connection, messages: int) -> None:
    """Put messages in with one plain INSERT."""
    conn.execute("INSERT INTO raw (message) SELECT %s::jsonb FROM generate_series(1, %s)", [BODY, messages])


def analyse(conn: Connection) -> None:
    """Do what autovacuum will have done to a queue of this size."""
    conn.execute("VACUUM (ANALYZE) raw")


def count(conn: Connection) -> int:
    """Count the rows."""
    row = conn.execute("SELECT count(*) FROM raw").fetchone()
    return int(row[0]) if row else 0


def consume(batch: int) -> str:
    """One transaction: delete a batch and see its bodies; no lease, no archive."""
    return (
        "WITH gone AS (DELETE FROM raw WHERE ctid = ANY (ARRAY("
        f"SELECT ctid FROM raw ORDER BY id LIMIT {batch} FOR UPDATE SKIP LOCKED)) RETURNING id, message)"
        " SELECT count(*) FROM gone;\n"
    )


def publish() -> str:
    """Insert one row."""
    return "INSERT INTO raw (message) VALUES (:body) RETURNING id;\n"
