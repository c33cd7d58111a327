"""Closed partitions of the archive for tests, demo and benchmarks, which cannot wait for a day or a month to end."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

_NO_BEGIN: Final = (
    "ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins"
)


def make_empty_partition(conn: psycopg.Connection[Any], first_at: datetime, end_at: datetime, name: str = "") -> str:
    """Make an empty partition of the archive for a time that is over; return its name, by default made of its day."""
    name = name or f"message_archive_{first_at:%Y%m%d}"
    table = sql.Identifier("messages", name)
    conn.execute(_NO_BEGIN)
    conn.execute(
        sql.SQL("CREATE TABLE {} PARTITION OF messages.archive_rows FOR VALUES FROM ({}) TO ({})").format(
            table, first_at, end_at
        )
    )
    conn.execute(sql.SQL("ALTER TABLE {} OWNER TO messages_owner").format(table))
    return name
