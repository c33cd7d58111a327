"""The data source `pgqueue`: says what can be read and written; the readers and writers do it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.source.archive_log import ArchiveLog
from airflow_provider_pgqueue.spark.source.options import choice, names
from airflow_provider_pgqueue.spark.source.read import RangeReader
from airflow_provider_pgqueue.spark.source.tables import ARCHIVE, table_of
from airflow_provider_pgqueue.spark.source.writer import (
    PublishOptions,
    PublishStreamWriter,
    PublishWriter,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, dsn: str | None = None) -> None:
    """Make `format("pgqueue")` known to a session, for batch and for streams; calling it again replaces the connection.

    A local Spark then starts its workers with this Python, unless PYSPARK_PYTHON or spark.pyspark.python names another.

    In a thread of your own, call it before you write: Spark looks for where to write in the active session of the
    thread, which only the main thread has by itself, and else says DATA_SOURCE_NOT_FOUND.

    :param dsn: libpq connection string or URL; by default `PGQUEUE_DSN`, or libpq's own variables and service file. It
        is resolved here, on the driver, and travels to the executors inside their tasks: it stands in no argument,
        plan, configuration or page of Spark.
    """
    check_spark(spark)
    spark.dataSource.register(data_source(Database(dsn or "")))
    spark.createDataFrame([], "id int")  # makes the session the active one of this thread


class PgQueueSource(DataSource):
    """`format("pgqueue")`, as docs/reference/spark-source.md describes it."""

    database: Database

    def schema(self) -> StructType:
        if "provider" in self.options:  # a property of a table of the catalog
            raise InvalidArgument(
                "no table of Spark's catalog can be of this source, because Spark hands its options on to no read",
                "Use CREATE TEMPORARY VIEW ... USING pgqueue OPTIONS (...).",
            )
        return table_of(self.options).spark_schema(names(self.options, "columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(self.database, self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        choice(self.options, "table", ("queue",), default="queue")
        return PublishWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if table_of(self.options) is not ARCHIVE:
            raise InvalidArgument("a stream follows the archive, not a queue", "Work off a queue with drain.")
        return ArchiveLog(self.database, self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        choice(self.options, "table", ("queue",), default="queue")
        return PublishStreamWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite))


def check_spark(spark: SparkSession) -> None:
    """Raise a PgQueueError if PySpark is another version than its Spark, which fails later and says nothing of it."""
    own = pyspark.__version__
    if not is_remote() and own.split(".")[:2] != spark.version.split(".")[:2]:
        raise PgQueueError(
            f"PySpark is {own} and its Spark is {spark.version}",
            f"Install one version: pip install --force-reinstall pyspark=={own} pyspark-client=={own}",
        )
    if not is_remote() and (spark.sparkContext.master or "").startswith("local"):
        _use_own_python(spark)


def _use_own_python(spark: SparkSession) -> None:
    """Let a local Spark start this Python for its workers unless another is set; by default it takes any `python3`."""
    if "PYSPARK_PYTHON" not in os.environ and not spark.sparkContext.getConf().contains("spark.pyspark.python"):
        spark.sparkContext.pythonExec = sys.executable


def data_source(database: Database, name: str = "pgqueue") -> type[PgQueueSource]:
    """Return the data source for one database; a class of its own, because Spark registers classes, not values."""
    members: dict[str, Any] = {"database": database, "name": classmethod(lambda cls: name), "__module__": __name__}
    return type("PgQueueSourceOfOneDatabase", (PgQueueSource,), members)
