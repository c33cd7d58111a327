"""What a session of Spark is told at once: which Python it starts, what is no table, what cannot be sent to a task."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, QueueNotFound
from airflow_provider_pgqueue.spark import drain, register
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline

Connection = psycopg.Connection[Any]


def test_a_local_spark_starts_the_python_that_registers(
    session: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.sparkContext, "pythonExec", "no such python")
    register(session, dsn)  # somebody said which
    assert session.sparkContext.pythonExec == "no such python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    register(session, dsn)
    assert session.sparkContext.pythonExec == sys.executable
    assert session.read.format("pgqueue").options(table="archive").load().count() == 0


@pytest.mark.parametrize("options", ["", "OPTIONS (table 'archive')"])
def test_a_table_of_the_catalog_is_refused_when_it_is_made(spark: SparkSession, options: str) -> None:
    with pytest.raises(PySparkException, match=r"no table of Spark's catalog can be of this source.*TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE never_made USING pgqueue {options}")
    assert not spark.catalog.tableExists("never_made")


def test_a_function_that_cannot_be_sent_is_named_in_our_words(
    spark: SparkSession, dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute("SELECT messages.publish('orders', '1')")
    lock = threading.Lock()

    def handle(messages: Any) -> None:
        with lock:
            pass

    with pytest.raises(InvalidArgument, match=r"cannot be sent to the tasks: .*lock.*Let it open connections"):
        drain(spark, queue="orders", function=handle, dsn=dsn)


def test_the_names_of_many_queues_do_not_make_the_name_of_a_run_too_long(session: SparkSession, dsn: str) -> None:
    names = [f"{'q' * 46}_{number}" for number in range(9)]
    assert Pipeline.of(session, "repair", None, dsn, None, *names).once(dict) == {}


@pytest.mark.parametrize(
    ("error", "helps"), [(ConnectionFailed("gone"), True), (KeyboardInterrupt(), True), (QueueNotFound("none"), False)]
)
def test_run_it_again_is_said_where_it_may_help(
    session: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture, error: BaseException, helps: bool
) -> None:
    def fail() -> dict[str, Any]:
        raise error

    caplog.set_level(logging.ERROR)
    with pytest.raises(type(error)):
        Pipeline.of(session, "repair", "nightly", dsn, None).once(fail)
    assert ("run it again" in caplog.text) is helps
