"""Leases messages as a table, for a task of a drain."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core.client import fetch
from airflow_provider_pgqueue.core.consumer.settle import Held
from airflow_provider_pgqueue.core.errors import refused
from airflow_provider_pgqueue.core.query import query

log = logging.getLogger(__name__)

_MESSAGES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("message", pa.string()),
        ("reference", pa.string()),
        ("attempts", pa.int32()),
        ("headers", pa.string()),
        ("topic", pa.string()),
        ("group_key", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)


def lease_table(
    conn: psycopg.Connection[Any],
    queue_name: str,
    *,
    max_messages: int,
    lease_for: timedelta,
    locked_by: str,
    topic: str | None,
) -> TableLease | None:
    """Lease messages; None if nothing was ready.

    JSON comes as its text and by columns: an object for each message would cost more than the server does.
    """
    given = locals()
    fix = partial(refused, verb="lease", queue_name=queue_name)
    rows = fetch(conn, tuple_row, query("lease_rows"), given, fix=fix)
    return TableLease(conn, rows, lease_for=lease_for, handled_by=locked_by) if rows else None


class TableLease(Held):
    """Leased messages as a table."""

    def __init__(
        self, conn: psycopg.Connection[Any], rows: list[tuple[Any, ...]], *, lease_for: timedelta, handled_by: str
    ) -> None:
        *self._columns, (most, *_), (token, *_) = zip(*rows, strict=True)
        ids, attempts = self._columns[0], self._columns[_MESSAGES.get_field_index("attempts")]
        super().__init__(
            conn,
            token,
            ids,
            lease_for=lease_for,
            handled_by=handled_by,
            attempts=dict(zip(ids, attempts, strict=True)),
            max_attempts=most,
        )

    @cached_property
    def table(self) -> pa.Table:
        """What a function gets."""
        # Made when it is asked for, because the lease is renewed by then: the imports for the first table take long.
        return pa.table(self._columns, schema=_MESSAGES)
