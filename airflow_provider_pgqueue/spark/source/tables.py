"""The tables that can be read: their columns, declared once for SQL, Arrow and Spark, and conditions on their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import DataType, LongType, ShortType, StringType, StructField, StructType, TimestampType

from airflow_provider_pgqueue.core.argument import topic_pattern
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.spark.source import options as given

_TEXT: Final = (pa.string(), StringType())
_MOMENT: Final = (pa.timestamp("us", tz="UTC"), TimestampType())
# A type of PostgreSQL in Arrow and in Spark, and what converts a value that does not arrive as that.
_KINDS: Final[Mapping[str, tuple[pa.DataType, DataType, LiteralString]]] = {
    "bigint": (pa.int64(), LongType(), "{}"),
    "smallint": (pa.int16(), ShortType(), "{}"),
    "text": (*_TEXT, "{}"),
    "jsonb": (*_TEXT, "{}::text"),
    "uuid": (*_TEXT, "{}::text"),
    "timestamptz": (*_MOMENT, "{}"),
    # A moment that may be infinite, which neither Arrow nor Spark has: it reads as NULL.
    "infinite": (*_MOMENT, "CASE WHEN isfinite({0}) THEN {0} END"),
}
_IN_A_PATTERN: Final = {"*": r"\.[^.]+", "#": r"(\.[^.]+)*"}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, named alike in SQL and in Spark, and what to select for it."""

    name: str
    arrow: pa.DataType
    spark: DataType
    expression: sql.Composable


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be read.

    :param moment: the column that the options `from` and `to` are about.
    :param on_request: a column that is not read unless somebody asks for it.
    """

    name: str
    relation: sql.Identifier
    moment: str
    columns: tuple[TableColumn, ...]
    on_request: str = "message"

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
        return tuple(known[name] for name in wanted or known if wanted or name != self.on_request)

    def columns_of(self, schema: StructType) -> tuple[TableColumn, ...]:
        """Return the columns of a schema; InvalidArgument if the table has none of that name and type."""
        columns = self.select(schema.fieldNames())
        for asked, known in zip(schema, columns, strict=True):
            if asked.dataType != known.spark:
                raise InvalidArgument(
                    f"column {asked.name!r} is {known.spark.simpleString()}, not "
                    f"{asked.dataType.simpleString()}. Leave out schema(), and cast afterwards."
                )
        return columns

    def statement(self, columns: Iterable[TableColumn], conditions: Collection[sql.Composable]) -> sql.Composed:
        """Return the SELECT of the rows that meet all conditions."""
        selected = sql.SQL(", ").join(column.expression for column in columns)
        return sql.SQL(query("rows").decode()).format(selected, self.relation, both(conditions))


def _columns(text: str) -> tuple[TableColumn, ...]:
    found = []
    for name, kind in (column.split() for column in text.split(",")):
        arrow, spark, read = _KINDS[kind]
        value = sql.SQL(read).format(sql.Identifier(name))
        found.append(TableColumn(name, arrow, spark, sql.SQL("{} AS {}").format(value, sql.Identifier(name))))
    return tuple(found)


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
        """
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
        """
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
    on_request="",
)
_TABLES: Final = {table.name: table for table in (ARCHIVE, _QUEUE)}


def table_of(options: Mapping[str, str]) -> Table:
    """Return the table that a read names; there is no default, because options may be lost on the way."""
    if "table" not in options:
        raise InvalidArgument(
            "option table is missing. Give archive (what is finished) or queue (what waits or is leased). Spark hands "
            "no options of CREATE TABLE on to a read: use CREATE TEMPORARY VIEW ... USING pgqueue OPTIONS (...)."
        )
    return _TABLES[given.choice(options, "table", _TABLES)]


def spark_schema(columns: Collection[TableColumn]) -> StructType:
    """Return the columns as Spark has them."""
    return StructType([StructField(column.name, column.spark) for column in columns])


def arrow_schema(columns: Collection[TableColumn]) -> Any:
    """Return the columns as Arrow has them, equal to what Spark expects of them."""
    return pa.schema([(column.name, column.arrow) for column in columns])


def conditions(options: Mapping[str, str]) -> list[sql.Composable]:
    """Return what the options `queue`, `result`, `reference` and `topic` are in SQL."""
    listed = (("queue_name", given.queues(options)), ("result", given.results(options)))
    found: list[sql.Composable] = [
        sql.SQL("{} IN ({})").format(sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, values)))
        for name, values in listed
        if values
    ]
    if "reference" in options:
        found.append(compare("reference", "=", options["reference"]))
    if (pattern := options.get("topic")) is not None:
        if cure := topic_pattern(pattern):
            raise InvalidArgument(f"option topic is {pattern[:50]!r}", cure)
        # As messages.topic_regex() does, which a reader may not call.
        words = "".join(_IN_A_PATTERN.get(word, rf"\.{word}") for word in pattern.split("."))
        found.append(sql.SQL("'.' || topic ~ {}").format(sql.Literal(f"^{words}$")))
    return found


def compare(column: str, sign: str, value: Any) -> sql.Composed:
    """Return the condition that a column and a value meet."""
    return sql.SQL("{} {} {}").format(sql.Identifier(column), sql.SQL(sign), sql.Literal(value))


def both(conditions: Collection[sql.Composable]) -> sql.Composable:
    """Return the condition that all of these are met."""
    return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")
