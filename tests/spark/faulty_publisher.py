"""A driver that publishes and goes wrong where it is told to; a program of its own, so that it can be killed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.data_source import PgQueueSource, data_source
from airflow_provider_pgqueue.spark.source.staging import StagedRows
from airflow_provider_pgqueue.spark.source.writer import (
    Messages,
    PublishOptions,
    PublishStreamWriter,
    PublishWriter,
)


def hang(place: Path) -> None:
    """Say that this place was reached, and never leave it."""
    place.touch()
    while True:
        signal.pause()


class FaultyWriter(PublishWriter):
    """Loses the first attempt of partition 0 after it staged its rows, or hangs before the commit."""

    def __init__(self, database: Database, options: PublishOptions, fault: str, home: Path) -> None:
        super().__init__(database, options)
        self._fault, self._home = fault, home

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        staged = super().write(iterator)
        task: Any = TaskContext.get()
        if self._fault == "retry" and task.partitionId() == 0 and task.attemptNumber() == 0:
            (self._home / "retry").touch()
            raise OSError("the executor has a bad day")
        return staged

    def commit(self, messages: Messages) -> None:
        if self._fault == "before":
            hang(self._home / "before")
        super().commit(messages)


class FaultyStreamWriter(PublishStreamWriter):
    """Hangs when the batch is published and Spark does not know it yet."""

    def __init__(self, database: Database, options: PublishOptions, home: Path) -> None:
        super().__init__(database, options)
        self._home = home

    def commit(self, messages: Messages, batchId: int) -> None:
        super().commit(messages, batchId)
        hang(self._home / "stream")


def faulty_source(home: Path) -> type[PgQueueSource]:
    """Return the data source whose fault is the name of the queue."""

    def writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishWriter:
        options = PublishOptions.of(self.options, schema, overwrite=overwrite)
        return FaultyWriter(self.database, options, self.options["queue"], home)

    def stream_writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishStreamWriter:
        return FaultyStreamWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite), home)

    return type("FaultySource", (data_source(Database()),), {"writer": writer, "streamWriter": stream_writer})


def publish(frame: DataFrame, fault: str) -> None:
    frame.write.format("pgqueue").mode("append").option("queue", fault).option("runId", fault).save()


def main(home: Path) -> None:
    spark = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(faulty_source(home))
    numbers = spark.range(0, 10, 1, 2).selectExpr("cast(id AS string) AS message")
    publish(numbers, "retry")
    numbers.write.parquet(str(home / "in"))
    arrivals = spark.readStream.schema("message string").parquet(str(home / "in"))
    options = {"queue": "stream", "checkpointLocation": str(home / "checkpoint")}
    arrivals.writeStream.format("pgqueue").options(**options).start()
    publish(numbers, "before")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
