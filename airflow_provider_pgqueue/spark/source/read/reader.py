"""Reads the archive or the queue into Spark: range by range, each statement in a short read-only transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import adbc_driver_manager.dbapi as adbc
import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    PermissionDenied,
    PgQueueError,
    translate,
)
from airflow_provider_pgqueue.core.migrations import check_version
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source import filters
from airflow_provider_pgqueue.spark.source.read import ranges
from airflow_provider_pgqueue.spark.source.schema import arrow_schema, spark_schema
from airflow_provider_pgqueue.spark.source.selection import Selection, pushes_filters


class RangeReader(DataSourceReader):
    """A batch read. Nothing is leased or changed; each action of a DataFrame reads anew.

    Guarantees: a message that is there from the begin of the action to its end comes exactly once, however many ranges
    there are and whatever is leased, archived or decided meanwhile. One that comes or goes meanwhile comes at most
    once. A task that fails reads its range again.
    """

    def __init__(self, database: Database, options: Mapping[str, Any], schema: StructType) -> None:
        """Check the options; opens nothing."""
        self.database = database
        self.selection = _with_schema(Selection.of_options(options), schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges, on the driver. Raises an error of the tree in `core.errors`."""
        with self.database.connect("pgqueue spark plan") as conn:
            try:
                check_version(conn)
                conn.read_only = True
                with conn.transaction():
                    return list(ranges.plan(conn, self.selection))
            except (psycopg.errors.InsufficientPrivilege, PermissionDenied) as error:
                raise PermissionDenied(
                    f"role {conn.info.user!r} may not read the {self.selection.table.name}. "
                    f'Ask an admin: GRANT messages_reader TO "{conn.info.user}"'
                ) from error
            except psycopg.Error as error:
                raise translate(error) from error

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Stream the record batches of one range, on an executor; holds one batch at a time."""
        statements = partition.statements if isinstance(partition, ranges.Range) else ()
        if not statements:
            return
        schema = arrow_schema(self.selection.columns)
        with self.database.arrow("pgqueue spark read") as conn, conn.cursor() as cursor:
            for statement in statements:
                yield from _batches(cursor, statement, schema)


class FilteringReader(RangeReader):
    """The same with the filters of Spark in SQL.

    Only for a DataFrame that one query uses once: Spark 4.2 keeps the filters that one query pushed down for the other
    scans of the DataFrame, which then miss rows. docs/decisions/0009-ranges-of-time-and-id.md
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that SQL applies just as Spark would; give back the others."""
        return [given for given in filters if not self._take(given)]

    def _take(self, given: Filter) -> bool:
        table = self.selection.table
        span = filters.span(given, table.moment)
        condition = filters.condition(given, {column.name: column for column in table.columns})
        if span:
            self.selection = replace(self.selection, span=self.selection.span & span)
        elif condition:
            self.selection = replace(self.selection, conditions=(*self.selection.conditions, condition))
        return bool(span or condition)


def reader(database: Database, options: Mapping[str, Any], schema: StructType) -> RangeReader:
    """Return what reads with these options."""
    kind = FilteringReader if pushes_filters(options) else RangeReader
    return kind(database, options, schema)


def _batches(cursor: Any, statement: str, schema: pa.Schema) -> Iterator[Any]:
    try:
        cursor.execute("BEGIN READ ONLY")
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            yield batch.cast(schema)
        cursor.execute("COMMIT")
    except (adbc.Error, pa.ArrowException, OSError) as error:
        # Not as the cause: its text has the whole statement, with the values of the filters.
        raise _translated(error) from None


def _translated(error: Exception) -> PgQueueError:
    """Return the error of the tree for one of the Arrow driver, or of Arrow in the middle of a result."""
    said = re.search(r"(?:ERROR|FATAL): +(.*)", str(error))
    text = said[1] if said else "the connection broke"
    if getattr(error, "sqlstate", None) == "42501":
        return PermissionDenied(f"{text}. Ask an admin to grant messages_reader to the role.")
    return ConnectionFailed(f"a range could not be read: {text}. Nothing was changed; read again.")


def _with_schema(selection: Selection, schema: StructType) -> Selection:
    columns = selection.table.select(schema.fieldNames())
    for given, known in zip(schema, spark_schema(columns), strict=True):
        if given.dataType != known.dataType:
            raise InvalidArgument(
                f"column {given.name!r} is {known.dataType.simpleString()}, not {given.dataType.simpleString()}. "
                "Leave out schema(), and cast afterwards."
            )
    return replace(selection, columns=columns)
