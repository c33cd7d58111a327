"""The pipelines through PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.export import export_archive
from airflow_provider_pgqueue.export.connection import Database, rows
from airflow_provider_pgqueue.spark import drain, export, read_export, register, repair
from airflow_provider_pgqueue.spark.source.staging import Stage
from tests.archive import make_partition
from tests.spark.functions import accept, keep
from tests.waiting import until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

pytestmark = pytest.mark.pooler


def test_a_repair_requeues_each_dead_message(
    session: SparkSession, pooled_dsn: str, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(100))))
    dead = run(conn, verbs.lease("orders", max_messages=100))
    assert dead[0].lock_token
    run(conn, verbs.archive(dead[0].lock_token, [message.id for message in dead], result="failed"))
    options: dict[str, Any] = {"parallelism": 4, "batch_size": 10, "canary": 2, "max_per_second": 1000}
    with ThreadPoolExecutor() as pool:
        repairing = pool.submit(
            repair, session, queue="orders", function="tests.spark.functions:double", dsn=pooled_dsn, **options
        )
        # The canary waits until somebody has handled what it requeued, which each task does by itself.
        handled = 0
        while handled < options["canary"]:
            canary = until(lambda: run(conn, verbs.lease("orders", max_messages=2)), 120)
            run(conn, verbs.archive(canary[0].lock_token, [message.id for message in canary]))
            handled += len(canary)
        summary = repairing.result()
    assert summary["requeued"] == 100
    bodies = conn.execute("SELECT message FROM messages.message").fetchall()
    assert len(bodies) == 98
    assert all(body % 2 == 0 for (body,) in bodies)


def test_slots_go_with_the_transaction(pooled_dsn: str, conn: Connection, queue: Queue) -> None:
    stage = Stage(Database(pooled_dsn), "job", queue("orders"), slots=2)
    stage.open("nightly")
    batch = pa.RecordBatch.from_pydict({"message": ["1"] * 100})
    with ThreadPoolExecutor(6) as pool:
        winners = list(pool.map(lambda number: stage.put(number, iter([batch])), range(20)))
    assert conn.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").rowcount == 0
    assert stage.publish(winners, run_id="nightly")["published"] == 2000


def test_reads_share_the_sessions_of_the_pooler(pooled_dsn: str) -> None:
    database, schema = Database(pooled_dsn), pa.schema([("number", pa.int64())])

    def read(number: int) -> set[int]:
        with database.arrow() as reader:
            query = sql.SQL("SELECT {}::bigint AS number FROM generate_series(1, 1000)").format(number).as_string(None)
            found = [set(batch["number"].to_pylist()) for _ in range(5) for batch in rows(reader, query, schema)]
        return set().union(*found)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(80))) == [{number} for number in range(80)]


def test_an_export_is_alone(pooled_dsn: str, dsn: str, conn: Connection, tmp_path: Path) -> None:
    make_partition(conn, 40, 3000)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda at: export_archive(at, target=str(tmp_path)), (pooled_dsn, dsn)))
    assert sorted(len(done["exported"]) for done in both) == [0, 1]


def test_a_connection_string_says_whether_statements_are_prepared(dsn: str) -> None:
    database = Database(f"{dsn}?prepare_threshold=none")
    with database.connect() as conn:
        assert conn.prepare_threshold is None
    with database.arrow() as session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def follow(session: SparkSession, **options: str) -> int:
    """Return how many rows a stream of the archive gives."""
    stream = session.readStream.format("pgqueue").options(table="archive", **options).load().select("id")
    query = stream.writeStream.format("memory").queryName("followed").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return session.table("followed").count()


SINCE = datetime.now(UTC) - timedelta(days=100)
PIPELINES: dict[str, tuple[Callable[..., Any], dict[str, Any], str, Any]] = {
    "repair": (repair, {"queue": "orders", "function": keep, "dry_run": True}, "requeued", 0),
    "drain": (drain, {"queue": "orders", "function": accept, "parallelism": 4, "batch_size": 1}, "archived", 10),
}


def test_reads_streams_and_jobs_give_each_row_once_in_the_styles_that_a_database_sets(
    session: SparkSession, pooled_dsn: str, conn: Connection, queue: Queue, tmp_path: Path
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(10))))
    for days_ago in (40, 39):
        make_partition(conn, days_ago, 100)
    for name, value in {"DateStyle": "German, MDY", "IntervalStyle": "iso_8601"}.items():
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {name} = '{value}'".encode())
    register(session, pooled_dsn)
    read = session.read.format("pgqueue")
    assert read.options(table="archive", until="2999-01-01T00:00Z").load().count() == 200
    assert session.read.format("pgqueue").options(table="queue").load().count() == 10
    assert follow(session, startingOffsets=SINCE.isoformat(), failOnDataLoss="false") == 200
    for pipeline, (start, given, counted, number) in PIPELINES.items():
        assert start(session, dsn=pooled_dsn, **given)[counted] == number, pipeline
    target = str(tmp_path / "export")
    done = export(session, target=target, dsn=pooled_dsn, drop=True)
    assert (len(done["dropped"]), done["kept"], read_export(session, target).count()) == (2, {}, 200)
    # Locks of sessions would stay with a session of the pool.
    assert conn.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").rowcount == 0
