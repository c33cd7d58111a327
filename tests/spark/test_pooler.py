"""The pipelines through PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.spark import drain
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.publish.staging import Stage

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.pooler


def test_a_drain_archives_each_message(
    session: SparkSession, pooled_dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(500))))
    summary = drain(
        session, queue="orders", function=lambda messages: None, dsn=pooled_dsn, parallelism=4, batch_size=10
    )
    assert summary["archived"] == 500


def test_slots_go_with_the_transaction(pooled_dsn: str, conn: Connection, queue: Callable[..., str]) -> None:
    stage = Stage(Database(pooled_dsn), "job", slots=2)
    stage.open(queue_name=queue("orders"), run_id="nightly")
    rows = pa.RecordBatch.from_pydict({"message": ["1"] * 100})
    with ThreadPoolExecutor(6) as pool:
        winners = list(pool.map(lambda number: stage.put(number, iter([rows])), range(20)))
    assert conn.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").rowcount == 0
    assert stage.publish(winners, run_id="nightly", queue_name="orders")["published"] == 2000


def test_a_connection_string_says_whether_statements_are_prepared(dsn: str) -> None:
    database = Database(f"{dsn}?prepare_threshold=none")
    with database.connect() as conn:
        assert conn.prepare_threshold is None
    with database.arrow() as session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
