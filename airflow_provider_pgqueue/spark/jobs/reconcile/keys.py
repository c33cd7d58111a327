"""Keys to compare with: ids or references out of a query, in any PostgreSQL, or out of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_pgqueue.core.errors import ConnectionFailed, InvalidArgument, PermissionDenied, translate
from airflow_provider_pgqueue.spark.database import Database

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where keys come from: the `column` of `files`, or of a `query`, which is run as it is in `database`."""

    column: str
    query: str | None
    files: str | None
    database: Database

    @classmethod
    def of(
        cls, name: str, files: str | None, query: str | None, column: str, variable: str | None, database: Database
    ) -> Keys | None:
        """Return what the arguments `name`, `name_query`, … say, None if they name no source."""
        if files is None and query is None:
            return None
        if files is not None and query is not None:
            raise InvalidArgument(f"{name} and {name}_query are both given. Give files or a query.")
        if variable is not None and not os.environ.get(variable):
            raise InvalidArgument(f"the variable {variable} is not set. Put the connection string of {name} into it.")
        where = database if variable is None else Database(os.environ[variable])
        return cls(column=column, query=query, files=files, database=where)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the keys as texts in a column `key`, without NULL; InvalidArgument for what has no such column."""
        rows = _of_files(spark, self) if self.query is None else _of_query(spark, self, self.query)
        return rows.where(F.col("key").isNotNull())


def _of_files(spark: SparkSession, keys: Keys) -> DataFrame:
    path = keys.files or ""
    kind = next((_FORMATS[suffix] for suffix in PurePath(path).suffixes if suffix in _FORMATS), "parquet")
    try:
        rows = spark.read.format(kind).options(**({"header": "true"} if kind == "csv" else {})).load(path)
        columns = rows.columns
    except AnalysisException as error:
        raise InvalidArgument(f"{path!r} cannot be read as {kind}: {str(error).splitlines()[0]}") from error
    if keys.column not in columns:
        raise InvalidArgument(f"{path!r} has no column {keys.column!r}. It has {', '.join(columns)}.")
    return rows.select(F.col(f"`{keys.column.replace('`', '``')}`").cast("string").alias("key"))


def _of_query(spark: SparkSession, keys: Keys, query: str) -> DataFrame:
    database = keys.database
    # In a line of its own, so that a comment at its end hides nothing.
    text = sql.SQL("SELECT q.{}::text AS key FROM (\n{}\n) AS q").format(
        sql.Identifier(keys.column),
        sql.SQL(query.strip().rstrip(";")),
    )
    with database.connect("pgqueue keys") as conn:
        statement = text.as_string(conn)
        _check(conn, statement)

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with database.arrow("pgqueue keys") as session, session.cursor() as cursor:
                cursor.execute(statement)
                yield from cursor.fetch_record_batch()

    # One task: a query cannot be cut into ranges, and one column of it flows through COPY as it is read.
    return spark.range(0, 1, 1, 1).mapInArrow(fetch, "key string")


def _check(conn: psycopg.Connection[Any], statement: str) -> None:
    """Let PostgreSQL plan the query, before Spark starts anything."""
    try:
        conn.execute(f"EXPLAIN {statement}".encode())
    except psycopg.Error as error:
        known = translate(error)
        if isinstance(known, ConnectionFailed | PermissionDenied):
            raise known from error
        raise InvalidArgument(
            f"the query is not valid: {error.diag.message_primary}. Give a SELECT that has the column."
        ) from error
