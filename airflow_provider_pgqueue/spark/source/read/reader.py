"""Reads the archive or the queue into Spark: range by range, each statement in a short read-only transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, translate
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.read import ranges
from airflow_provider_pgqueue.spark.source.rows import rows
from airflow_provider_pgqueue.spark.source.schema import arrow_schema
from airflow_provider_pgqueue.spark.source.selection import Selection


class RangeReader(DataSourceReader):
    """A batch read. Nothing is leased or changed; each action of a DataFrame reads anew.

    Guarantees: a message that is there from the begin of the action to its end comes exactly once, however many ranges
    there are and whatever is leased, archived or decided meanwhile. One that comes or goes meanwhile comes at most
    once. A task that fails reads its range again.
    """

    def __init__(self, database: Database, options: Mapping[str, Any], schema: StructType) -> None:
        """Check the options; opens nothing."""
        self.database = database
        selection = Selection.of_options(options)
        self.selection = replace(selection, columns=selection.table.columns_of(schema))

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges, on the driver. Raises an error of the tree in `core.errors`."""
        with self.database.connect("pgqueue spark plan") as conn:
            try:
                check_version(conn)
                conn.read_only = True
                with conn.transaction():
                    _check_where(conn, self.selection)
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
        with self.database.arrow("pgqueue spark read") as conn:
            for statement in statements:
                yield from rows(conn, statement, schema, has_where=self.selection.where is not None)


def _check_where(conn: psycopg.Connection[Any], selection: Selection) -> None:
    for statement in selection.checks():
        try:
            # In the binary format, which the server takes for one statement only.
            conn.execute(statement.encode(), binary=True)
        except psycopg.Error as error:
            if conn.closed:
                raise
            said = " ".join((error.diag.message_primary or "").split())
            raise InvalidArgument(
                f"option where is not a condition that PostgreSQL takes: {said}. Give one "
                f"condition on {selection.table.relation.as_string(conn)}, such as: priority > 0 AND attempts = 1"
            ) from None
