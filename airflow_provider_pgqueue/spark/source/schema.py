"""The columns of the archive and of the queue: declared once, for SQL, for Arrow and for Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import DataType, LongType, ShortType, StringType, StructField, StructType, TimestampType

from airflow_provider_pgqueue.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of PostgreSQL as Arrow and Spark have it; `read` is how a column becomes that, where it is not at once."""

    name: str
    arrow: pa.DataType
    spark: DataType
    read: LiteralString = "{}"


BIGINT: Final = Kind("bigint", pa.int64(), LongType())
SMALLINT: Final = Kind("smallint", pa.int16(), ShortType())
TEXT: Final = Kind("text", pa.string(), StringType())
JSON: Final = Kind("jsonb", pa.string(), StringType(), read="{}::text")
UUID: Final = Kind("uuid", pa.string(), StringType(), read="{}::text")
MOMENT: Final = Kind("timestamptz", pa.timestamp("us", tz="UTC"), TimestampType())
# A moment that may be infinite, which neither Arrow nor Spark has: it reads as NULL.
FINITE: Final = replace(MOMENT, read="CASE WHEN isfinite({0}) THEN {0} END")


@dataclass(frozen=True, slots=True)
class Column:
    """A column, named alike in SQL and in Spark."""

    name: str
    kind: Kind

    @property
    def value(self) -> sql.Composable:
        """The value that arrives, as an SQL expression."""
        return sql.SQL(self.kind.read).format(sql.Identifier(self.name))

    @property
    def expression(self) -> sql.Composable:
        """What to select: the value, under the name of the column."""
        return sql.SQL("{} AS {}").format(self.value, sql.Identifier(self.name))


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be read; `moment` is the column that `from` and `to` are about."""

    name: str
    relation: sql.Identifier
    moment: str
    columns: tuple[Column, ...]

    def select(self, names: Iterable[str] = ()) -> tuple[Column, ...]:
        """Return columns by name, in that order; all without names. InvalidArgument for an unknown or doubled one."""
        known, wanted = {column.name: column for column in self.columns}, list(names)
        for place, name in enumerate(wanted):
            if name not in known:
                raise InvalidArgument(f"the {self.name} has no column {name!r}. It has {', '.join(known)}.")
            if name in wanted[:place]:
                raise InvalidArgument(f"column {name!r} is named twice. Name each column once.")
        return tuple(known[name] for name in wanted or known)

    def selected(self, names: Iterable[str]) -> str:
        """Return what to SELECT for these columns."""
        return ", ".join(column.expression.as_string(None) for column in self.select(names))


ARCHIVE: Final = Table(
    "archive",
    sql.Identifier("messages", "message_archive"),
    "archived_at",
    (
        Column("id", BIGINT),
        Column("queue_name", TEXT),
        Column("result", TEXT),
        Column("created_at", MOMENT),
        Column("leased_at", MOMENT),
        Column("archived_at", MOMENT),
        Column("attempts", SMALLINT),
        Column("priority", SMALLINT),
        Column("requeues", SMALLINT),
        Column("requeued_from", BIGINT),
        Column("handled_by", TEXT),
        Column("details", TEXT),
        Column("reference", TEXT),
        Column("topic", TEXT),
        Column("group_key", TEXT),
        Column("fingerprint", TEXT),
        Column("remedy", TEXT),
        Column("remedied_at", MOMENT),
        Column("remedied_by", TEXT),
        Column("requeued_as", BIGINT),
        Column("dismissed_for", TEXT),
        Column("headers", JSON),
        Column("output", JSON),
        Column("failure", JSON),
        Column("message", JSON),
        Column("xid", BIGINT),
    ),
)
# Without lock_token: it is the right to finish a message, and who reads has leased nothing.
QUEUE: Final = Table(
    "queue",
    sql.Identifier("messages", "message"),
    "created_at",
    (
        Column("id", BIGINT),
        Column("queue_name", TEXT),
        Column("created_at", MOMENT),
        Column("visible_at", FINITE),
        Column("leased_at", MOMENT),
        Column("lock_expires_at", FINITE),
        Column("expires_at", FINITE),
        Column("due_at", FINITE),
        Column("attempts", SMALLINT),
        Column("priority", SMALLINT),
        Column("requeues", SMALLINT),
        Column("requeued_from", BIGINT),
        Column("locked_by", TEXT),
        Column("reference", TEXT),
        Column("topic", TEXT),
        Column("group_key", TEXT),
        Column("headers", JSON),
        Column("message", JSON),
    ),
)
# What lease_named() returns, with the token: whoever is given a message has to finish it.
LEASED: Final = Table(
    "lease",
    sql.Identifier("messages", "lease_named"),
    "created_at",
    (
        Column("id", BIGINT),
        Column("queue_name", TEXT),
        Column("message", JSON),
        Column("headers", JSON),
        Column("reference", TEXT),
        Column("topic", TEXT),
        Column("group_key", TEXT),
        Column("priority", SMALLINT),
        Column("attempts", SMALLINT),
        Column("max_attempts", SMALLINT),
        Column("requeues", SMALLINT),
        Column("created_at", MOMENT),
        Column("lock_token", UUID),
        Column("lock_expires_at", MOMENT),
    ),
)
TABLES: Final = {table.name: table for table in (ARCHIVE, QUEUE)}


def spark_schema(columns: Collection[Column]) -> StructType:
    """Return the columns as Spark has them."""
    return StructType([StructField(column.name, column.kind.spark) for column in columns])


def arrow_schema(columns: Collection[Column]) -> Any:
    """Return the columns as Arrow has them, equal to what Spark expects of them."""
    return pa.schema([(column.name, column.kind.arrow) for column in columns])
