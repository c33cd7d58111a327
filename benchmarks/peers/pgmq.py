"""PGMQ 1.13, the SQL that its Python package carries."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from benchmarks.measure import BODY
from benchmarks.server import Connection

NAME: Final = "pgmq"


def version() -> str:
    """Return the version of its SQL."""
    return files("pgmq").joinpath("sql", "VERSION").read_text().strip()


def install(conn: Connection) -> None:
    """Install the schema and one queue."""
    conn.execute(files("pgmq").joinpath("sql", "pgmq.sql").read_text().encode())
    conn.execute("SELECT pgmq.create('bench')")


def empty(conn: Connection) -> None:
    """Empty the queue and its archive."""
    conn.execute("TRUNCATE pgmq.q_bench, pgmq.a_bench")


def add(conn: Connection, messages: int) -> None:
    """Put messages in with one plain INSERT."""
    conn.execute(
        "INSERT INTO pgmq.q_bench (vt, message) SELECT clock_timestamp(), %s::jsonb FROM generate_series(1, %s)",
        [BODY, messages],
    )


def analyse(conn: Connection) -> None:
    """Do what autovacuum will have done to a queue of this size."""
    conn.execute("VACUUM (ANALYZE) pgmq.q_bench")


def count(conn: Connection) -> int:
    """Count what is in the queue."""
    row = conn.execute("SELECT count(*) FROM pgmq.q_bench").fetchone()
    return int(row[0]) if row else 0


def lease_archive(batch: int) -> str:
    """Two transactions: read a batch for five minutes, archive it."""
    return (
        f"SELECT array_agg(msg_id) AS ids FROM pgmq.read('bench', 300, {batch}) \\gset\n"
        "SELECT count(*) FROM pgmq.archive('bench', :ids::bigint[]);\n"
    )


def publish() -> str:
    """Send one message, without any NOTIFY."""
    return "SELECT * FROM pgmq.send('bench', :body::jsonb);\n"
