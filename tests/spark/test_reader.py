"""The batch read: what it gives, in how many ranges, under which privileges, and what it never shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

Connection = psycopg.Connection[tuple[Any, ...]]
Read = Callable[..., DataFrame]

ARCHIVE = """
    INSERT INTO messages.message_archive
        (queue_name, result, created_at, archived_at, attempts, reference, headers, message)
    SELECT (ARRAY['orders', 'mail'])[1 + n %% 2], (ARRAY['success', 'failed', 'rejected'])[1 + n %% 3],
           now() - interval '1 hour', now() - n * interval '1 second', n %% 5, 'order ' || n,
           jsonb_build_object('n', n), jsonb_build_object('number', n, 'text', repeat('x', 300))
      FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """Read with options: `read(columns="id")`; `from_` stands for `from`."""

    def load(**options: Any) -> DataFrame:
        return spark.read.format("pgqueue").options(**{key.rstrip("_"): value for key, value in options.items()}).load()

    return load


def rows_of(conn: Connection, selected: str, table: str = "message_archive") -> list[tuple[Any, ...]]:
    """What SQL gives, with moments as Spark's `collect()` has them."""
    query = sql.SQL("SELECT {} FROM messages.{}").format(sql.SQL(selected), sql.Identifier(table))
    return [
        tuple(value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value for value in row)
        for row in conn.execute(query).fetchall()
    ]


def test_a_read_gives_what_sql_gives(read: Read, conn: Connection) -> None:
    conn.execute(ARCHIVE, [1000])
    names = read().columns
    json = ("headers", "output", "failure", "message")
    selected = ", ".join(f"{name}::text" if name in json else name for name in names)
    assert sorted(map(tuple, read().collect())) == sorted(rows_of(conn, selected))
