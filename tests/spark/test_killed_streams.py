"""SIGKILL for a driver with both streams: one in the middle of a batch, one between the archive and the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from tests.spark.driver import killed_driver
from tests.spark.foreigners import let_foreigners_pass

Connection = psycopg.Connection[Any]
KILLED = """
import psycopg
from airflow_provider_pgqueue.spark.source.leases import ArchiveSink
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.data_source import data_source

def keep(batch, number):
    rows = [(number, row.id) for row in batch.select("id").collect()]
    with psycopg.connect(DSN) as conn:
        conn.execute("DELETE FROM public.kept WHERE batch = %s", [number])
        conn.cursor().executemany("INSERT INTO public.kept VALUES (%s, %s)", rows)
    if number == 1:
        pause("log")

class Pausing(ArchiveSink):
    def commit(self, messages, batchId):
        if batchId == 1:
            pause("lease")

class Source(data_source(Database(DSN))):
    def streamWriter(self, schema, overwrite):
        return Pausing(self.database, schema)

spark.dataSource.register(Source)
log = spark.readStream.format("pgqueue").options(table="archive", columns="id", maxMessagesPerTrigger="10")
log.option("queue", "mail").load().writeStream.foreachBatch(keep).option("checkpointLocation", FOLDER + "/log").start()
stream = spark.readStream.format("pgqueue").options(table="queue", queue="orders", streamName="packer")
writer = stream.option("maxMessagesPerTrigger", "10").load().writeStream.format("pgqueue").option("table", "archive")
writer.option("checkpointLocation", FOLDER + "/lease").start().awaitTermination()
"""


def test_a_killed_driver_goes_on_where_it_was_and_loses_and_doubles_nothing(
    spark: SparkSession,
    dsn: str,
    queue: Callable[..., str],
    conn: Connection,
    tmp_path: Path,
    fault: Callable[..., None],
) -> None:
    for name in ("mail", "orders"):
        queue(name, notify="off")
        conn.execute("SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, 25) n))", [name])
    mail = [some for _ in range(25) for (some,) in conn.execute("SELECT id FROM messages.consume('mail')")]
    orders = [id_ for (id_,) in conn.execute("SELECT id FROM messages.message ORDER BY id")]
    conn.execute("CREATE TABLE public.kept (batch bigint, id bigint)")

    killed_driver(KILLED, dsn, tmp_path, pauses=("log", "lease"))
    assert conn.execute("SELECT count(*) FROM public.kept").fetchone() == (20,)
    assert len(archived(conn)) == 20
    assert {committed(tmp_path / stream) for stream in ("log", "lease")} == {("0",)}

    def keep(batch: DataFrame, number: int) -> None:
        conn.execute("DELETE FROM public.kept WHERE batch = %s", [number])
        for row in batch.select("id").collect():
            conn.execute("INSERT INTO public.kept VALUES (%s, %s)", [number, row.id])

    log = (
        spark.readStream.format("pgqueue")
        .options(table="archive", columns="id", maxMessagesPerTrigger="10", queue="mail")
        .load()
    )
    stream = spark.readStream.format("pgqueue").options(table="queue", queue="orders", streamName="packer")
    writers = {
        "log": log.writeStream.foreachBatch(keep),
        "lease": stream.load().writeStream.format("pgqueue").option("table", "archive"),
    }
    let_foreigners_pass(conn)
    for name, writer in writers.items():
        query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    kept = [id_ for (id_,) in conn.execute("SELECT id FROM public.kept")]
    killed: dict[str, Any] = {"where": "local[2]", "times": 1}
    fault("kill -9 in a batch of the log stream", published=mail, found=kept, place="sink", **killed)
    done = [id_ for id_, _ in archived(conn)]
    fault("kill -9 between the archive's and the checkpoint's commit", published=orders, found=done, **killed)
    assert archived(conn) == [(id_, 1) for id_ in orders]


def archived(conn: Connection) -> list[tuple[int, int]]:
    query = "SELECT id, attempts FROM messages.message_archive WHERE queue_name = 'orders' ORDER BY id"
    return conn.execute(query).fetchall()


def committed(checkpoint: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")))
