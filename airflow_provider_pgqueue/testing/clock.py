"""Lets time pass in a queue under test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.query import query


def pass_time(conn: psycopg.Connection[Any], by: timedelta) -> None:
    """Make it `by` later for every message: moves all times of the schema, apart from the archive, into the past.

    Delayed messages become ready, leases and messages expire. LockNotAvailable if a transaction that is still open
    holds a message.
    """
    if by < timedelta(0):
        raise InvalidArgument(f"cannot pass {by}: time goes forward. Give a positive timedelta.")
    with conn.transaction():
        conn.execute("SET LOCAL lock_timeout = '5s'")
        for (statement,) in conn.execute(query("testing/moves_of_time")).fetchall():
            conn.execute(statement.encode(), {"by": by})
    conn.execute(query("testing/reset_marks"))
