"""Keys to compare with: ids or references out of a query, in any PostgreSQL, or out of files."""

from __future__ import annotations

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
    """Where keys come from: the `column` of a `query`, or of `files`.

    The query is a SELECT, or `TABLE shop.invoice`, of who operates the system: it is run as it is, in `database` or
    else where the queue is. Files are Parquet, or CSV with a header or JSON lines if their name says so.
    """

    column: str
    query: str | None = None
    files: str | None = None
    database: Database | None = None

    def __post_init__(self) -> None:
        if (self.query is None) == (self.files is None):
            raise InvalidArgument("keys come from a query or from files. Give one of the two.")


def read_keys(spark: SparkSession, keys: Keys, database: Database) -> DataFrame:
    """Return the keys as texts in a column `key`, without NULL; InvalidArgument for a source or column that is none."""
    rows = _of_files(spark, keys) if keys.query is None else _of_query(spark, keys, keys.database or database)
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


def _of_query(spark: SparkSession, keys: Keys, database: Database) -> DataFrame:
    # In a line of its own, so that a comment at its end hides nothing.
    text = sql.SQL("SELECT q.{}::text AS key FROM (\n{}\n) AS q").format(
        sql.Identifier(keys.column),
        sql.SQL((keys.query or "").strip().rstrip(";")),
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
