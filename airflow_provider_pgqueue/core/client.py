"""The two drivers that run a statement: one for a sync connection, one for an async one."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core.errors import translate
from airflow_provider_pgqueue.core.verbs import Statement

T = TypeVar("T")


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    """Return what the statement gives, in the caller's transaction if one is open.

    Raises an error of the tree in `errors`; LeaseLost after the rest of the call took effect.
    """
    try:
        with conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(_text(conn, statement), statement.given).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return statement.decode(rows)


async def run_async(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    """Do the same on an async connection."""
    try:
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_text(conn, statement), statement.given)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return statement.decode(rows)


def _text(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: Statement[Any]) -> str:
    # In a pipeline several statements may share a transaction.
    pgconn = conn.pgconn
    alone = conn.autocommit and pgconn.transaction_status == TransactionStatus.IDLE
    return statement.sql_alone if alone and pgconn.pipeline_status == PipelineStatus.OFF else statement.sql
