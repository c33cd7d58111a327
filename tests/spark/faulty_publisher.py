"""What a driver does that publishes and goes wrong where it is told to, to be killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.source.data_source import PgQueueSource, data_source
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
    """Hangs before the commit."""

    def __init__(self, database: Database, options: PublishOptions, home: Path) -> None:
        super().__init__(database, options)
        self._home = home

    def commit(self, messages: Messages) -> None:
        hang(self._home / "before")


class FaultyStreamWriter(PublishStreamWriter):
    """Hangs when the batch is published and Spark does not know it yet."""

    def __init__(self, database: Database, options: PublishOptions, home: Path) -> None:
        super().__init__(database, options)
        self._home = home

    def commit(self, messages: Messages, batchId: int) -> None:
        super().commit(messages, batchId)
        hang(self._home / "stream")


def faulty_source(dsn: str, home: Path) -> type[PgQueueSource]:
    """Return the data source whose writers hang."""

    def writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishWriter:
        return FaultyWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite), home)

    def stream_writer(self: PgQueueSource, schema: StructType, overwrite: bool) -> PublishStreamWriter:
        return FaultyStreamWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite), home)

    return type(
        "FaultySource", (data_source(Database(dsn), "faulty"),), {"writer": writer, "streamWriter": stream_writer}
    )


def publish(frame: DataFrame, fault: str) -> None:
    frame.write.format("faulty").mode("append").options(queue=fault, runId=fault).save()


def activate(spark: SparkSession) -> None:
    """Let a thread write to a data source of Python: Spark looks for it in the session of the thread."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def main(spark: SparkSession, dsn: str, home: Path) -> None:
    """Meet each fault, and hang in the last."""
    spark.dataSource.register(faulty_source(dsn, home))
    numbers = spark.range(0, 10, 1, 2).selectExpr("cast(id AS string) AS message")
    numbers.write.parquet(str(home / "in"))
    arrivals = spark.readStream.schema("message string").parquet(str(home / "in"))
    options = {"queue": "stream", "checkpointLocation": str(home / "checkpoint")}
    arrivals.writeStream.format("faulty").options(**options).start()
    publish(numbers, "before")
