"""The columns of the archive and of the queue: declared once, for SQL, for Arrow and for Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import DataType, LongType, ShortType, StringType, StructField, StructType, TimestampType

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.query import query


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of PostgreSQL as Arrow and Spark have it; `read` converts a column that does not arrive as that."""

    arrow: pa.DataType
    spark: DataType
    read: LiteralString = "{}"


_TEXT: Final = _Kind(pa.string(), StringType())
_MOMENT: Final = _Kind(pa.timestamp("us", tz="UTC"), TimestampType())
_KINDS: Final = {
    "bigint": _Kind(pa.int64(), LongType()),
    "smallint": _Kind(pa.int16(), ShortType()),
    "text": _TEXT,
    "jsonb": replace(_TEXT, read="{}::text"),
    "uuid": replace(_TEXT, read="{}::text"),
    "timestamptz": _MOMENT,
    # A moment that may be infinite, which neither Arrow nor Spark has: it reads as NULL.
    "infinite": replace(_MOMENT, read="CASE WHEN isfinite({0}) THEN {0} END"),
}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, named alike in SQL and in Spark; one that is not read `by_default` has to be asked for."""

    name: str
    kind: _Kind
    by_default: bool = True

    @property
    def expression(self) -> sql.Composable:
        """What to select: the value that arrives, under the name of the column."""
        name = sql.Identifier(self.name)
        return sql.SQL("{} AS {}").format(sql.SQL(self.kind.read).format(name), name)


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be read; `moment` is the column that the options `from` and `to` are about."""

    name: str
    relation: sql.Identifier
    moment: str
    columns: tuple[TableColumn, ...]

    def select(self, names: Iterable[str] = ()) -> tuple[TableColumn, ...]:
        """Return columns by name, in that order; `*` stands for all, and no names for all but the bodies.

        Spark does not say which columns a query uses, so a body that nobody asked for would be read for nothing.
        InvalidArgument for a column that does not exist or is named twice.
        """
        known, wanted = {column.name: column for column in self.columns}, list(names)
        if wanted == ["*"]:
            return self.columns
        for place, name in enumerate(wanted):
            if name not in known:
                raise InvalidArgument(f"the {self.name} has no column {name!r}. It has {', '.join(known)}.")
            if name in wanted[:place]:
                raise InvalidArgument(f"column {name!r} is named twice. Name each column once.")
        return tuple(known[name] for name in wanted) or tuple(column for column in self.columns if column.by_default)

    def columns_of(self, schema: StructType) -> tuple[TableColumn, ...]:
        """Return the columns of a schema; InvalidArgument if the table has none of that name and type."""
        columns = self.select(schema.fieldNames())
        for given, known in zip(schema, columns, strict=True):
            if given.dataType != known.kind.spark:
                raise InvalidArgument(
                    f"column {given.name!r} is {known.kind.spark.simpleString()}, not "
                    f"{given.dataType.simpleString()}. Leave out schema(), and cast afterwards."
                )
        return columns

    def statement(self, columns: Iterable[TableColumn], conditions: Collection[sql.Composable]) -> sql.Composed:
        """Return the SELECT of the rows that meet all conditions."""
        selected = sql.SQL(", ").join(column.expression for column in columns)
        return sql.SQL(query("rows").decode()).format(selected, self.relation, both(conditions))


def both(conditions: Collection[sql.Composable]) -> sql.Composable:
    """Return the condition that all of these are met."""
    return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")


def _columns(text: str, *, on_request: str = "") -> tuple[TableColumn, ...]:
    pairs = (column.split() for column in text.split(","))
    return tuple(TableColumn(name, _KINDS[kind], by_default=name != on_request) for name, kind in pairs)


ARCHIVE: Final = Table(
    "archive",
    sql.Identifier("messages", "message_archive"),
    "archived_at",
    _columns(
        """
        id bigint, queue_name text, result text, created_at timestamptz, leased_at timestamptz, archived_at timestamptz,
        attempts smallint, priority smallint, requeues smallint, requeued_from bigint, handled_by text, details text,
        reference text, topic text, group_key text, fingerprint text, remedy text, remedied_at timestamptz,
        remedied_by text, requeued_as bigint, dismissed_for text, headers jsonb, output jsonb, failure jsonb,
        message jsonb, xid bigint
        """,
        on_request="message",
    ),
)
# Without lock_token: it is the right to finish a message, and a reader has leased nothing.
_QUEUE: Final = Table(
    "queue",
    sql.Identifier("messages", "message"),
    "created_at",
    _columns(
        """
        id bigint, queue_name text, created_at timestamptz, visible_at infinite, leased_at timestamptz,
        lock_expires_at infinite, expires_at infinite, due_at infinite, attempts smallint, priority smallint,
        requeues smallint, requeued_from bigint, locked_by text, reference text, topic text, group_key text,
        last_error text, headers jsonb, message jsonb
        """,
        on_request="message",
    ),
)
# What lease_named() returns, with the token: whoever is given a message has to finish it.
LEASED: Final = Table(
    "lease",
    sql.Identifier("messages", "lease_named"),
    "created_at",
    _columns(
        """
        id bigint, queue_name text, message jsonb, headers jsonb, reference text, topic text,
        group_key text, priority smallint, attempts smallint, max_attempts smallint, requeues smallint,
        created_at timestamptz, lock_token uuid, lock_expires_at timestamptz
        """
    ),
)
TABLES: Final = {table.name: table for table in (ARCHIVE, _QUEUE)}


def spark_schema(columns: Collection[TableColumn]) -> StructType:
    """Return the columns as Spark has them."""
    return StructType([StructField(column.name, column.kind.spark) for column in columns])


def arrow_schema(columns: Collection[TableColumn]) -> Any:
    """Return the columns as Arrow has them, equal to what Spark expects of them."""
    return pa.schema([(column.name, column.kind.arrow) for column in columns])
