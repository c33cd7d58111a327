"""A driver that publishes and goes wrong where it is told to; a program of its own, so that it can be killed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.spark.source import PgQueueSource, data_source
from airflow_provider_pgqueue.spark.staging import Staged
from airflow_provider_pgqueue.spark.writer import Messages, PublishOptions, PublishStreamWriter, PublishWriter


def hang(place: Path) -> None:
    """Say that this place was reached, and never leave it."""
    place.touch()
    while True:
        signal.pause()


class FaultyWriter(PublishWriter):
    """Loses the first attempt of partition 0 after it staged its rows; hangs before or after the commit."""

    fault = ""
    home = Path()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        task: Any = TaskContext.get()
        if self.fault == "first attempt" and task.partitionId() == 0 and task.attemptNumber() == 0:
            (self.home / "first attempt").touch()
            raise OSError("the executor has a bad day")
        return staged

    def commit(self, messages: Messages) -> None:
        if self.fault == "before":
            hang(self.home / "before")
        super().commit(messages)
        if self.fault == "after":
            hang(self.home / "after")


class FaultyStreamWriter(PublishStreamWriter):
    """Hangs when the batch is published and Spark does not know it yet."""

    home = Path()

    def commit(self, messages: Messages, batchId: int) -> None:
        super().commit(messages, batchId)
        hang(self.home / "stream")


def faulty(fault: str, home: Path) -> type[PgQueueSource]:
    def writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishWriter:
        made = FaultyWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite))
        made.fault, made.home = fault, home
        return made

    def stream_writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishStreamWriter:
        made = FaultyStreamWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite))
        made.home = home
        return made

    return type("Faulty", (data_source(),), {"writer": writer, "streamWriter": stream_writer})


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 10, 1, 2).selectExpr("cast(id AS string) AS message")


def publish(spark: SparkSession, fault: str, home: Path) -> None:
    spark.dataSource.register(faulty(fault, home))
    frame = numbers(spark).write.format("pgqueue").mode("append")
    frame.option("queue", "orders").option("runId", fault).save()


def stream(spark: SparkSession, home: Path) -> None:
    spark.dataSource.register(faulty("", home))
    numbers(spark).write.parquet(str(home / "in"))
    rows = spark.readStream.schema("message string").parquet(str(home / "in"))
    options = {"queue": "orders", "checkpointLocation": str(home / "checkpoint")}
    rows.writeStream.format("pgqueue").options(**options).start()
    while not (home / "stream").exists():
        threading.Event().wait(0.1)


def main() -> None:
    home, faults = Path(sys.argv[1]), sys.argv[2:]
    spark = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false").getOrCreate()
    for fault in faults:
        if fault == "stream":
            stream(spark, home)
        else:
            publish(spark, fault, home)


if __name__ == "__main__":
    main()
