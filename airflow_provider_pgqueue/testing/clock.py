"""Lets time pass in a queue under test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument

# The archive stays where it is: archived_at names the partition of a row, and a partition has bounds.
_MOMENTS = """
    SELECT c.relname, array_agg(a.attname::text)
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
     WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
       AND c.relname NOT IN ('archive_policy', 'schema_migration')
       AND a.atttypid = 'timestamptz'::regtype AND a.attname <> 'archived_at' AND NOT a.attisdropped
     GROUP BY c.relname ORDER BY c.relname
"""
# A lease looks only from one mark on, and sweeps only after the other: without a reset it would find nothing.
_MARKS = "SELECT pg_catalog.setval(mark, 1) FROM messages.queue_priority, unnest(ARRAY[low_water, sweep_due]) mark"


def pass_time(conn: psycopg.Connection[Any], by: timedelta) -> None:
    """Make it `by` later for every message: moves all moments of the schema, apart from the archive, into the past.

    Delayed messages become ready, leases and messages expire. LockNotAvailable if a transaction that is still open
    holds a message.
    """
    if by < timedelta(0):
        raise InvalidArgument(f"cannot pass {by}: time goes forward. Give a positive timedelta.")
    with conn.transaction():
        conn.execute("SET LOCAL lock_timeout = '5s'")
        for table, columns in conn.execute(_MOMENTS).fetchall():
            moved = (sql.SQL("{0} = {0} - %(by)s").format(sql.Identifier(column)) for column in columns)
            statement = sql.SQL("UPDATE {} SET {}").format(sql.Identifier("messages", table), sql.SQL(", ").join(moved))
            conn.execute(statement, {"by": by})
    conn.execute(_MARKS)
