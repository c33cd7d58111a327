"""The tables that can be read: their columns, declared once for SQL and Spark, and conditions on their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, ShortType, StringType, StructField, StructType, TimestampType

from airflow_provider_pgqueue.core.argument import topic_pattern
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import RESULTS, TEXTS
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.spark.source import options as given

_TYPES: Final = {
    "bigint": LongType(),
    "smallint": ShortType(),
    "timestamptz": TimestampType(),
    "infinite": TimestampType(),
}  # the others are texts
_SELECT: Final[Mapping[str, LiteralString]] = {
    "jsonb": "{0}::text AS {0}",
    "uuid": "{0}::text AS {0}",
    # A time that may be infinite, which neither Arrow nor Spark has: it reads as NULL.
    "infinite": "CASE WHEN isfinite({0}) THEN {0} END AS {0}",
}
_IN_A_PATTERN: Final = {"*": r"\.[^.]+", "#": r"(\.[^.]+)*"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be read.

    :param moment: the column that the options `since` and `until` are about.
    :param columns: the kind of each column, by its name in SQL and in Spark.
    """

    name: str
    relation: sql.Identifier
    moment: str
    columns: Mapping[str, str]

    def select(self, names: Sequence[str] = ()) -> list[str]:
        """Return names of columns, in that order; `*` stands for all, and no name for all but the bodies.

        Spark does not say which columns a query uses, and the bodies would often be read for nothing.
        InvalidArgument for a column that does not exist or is named twice.
        """
        if list(names) == ["*"]:
            return list(self.columns)
        for name in names:
            if name not in self.columns:
                raise InvalidArgument(f"the {self.name} has no column {name!r}. It has {', '.join(self.columns)}.")
            if names.count(name) > 1:
                raise InvalidArgument(f"column {name!r} is named twice. Name each column once.")
        return list(names) or [name for name in self.columns if name != "message"]

    def spark_schema(self, names: Sequence[str] = ()) -> StructType:
        """Return columns as Spark has them, chosen as by `select`."""
        chosen = self.select(names)
        return StructType([StructField(name, _TYPES.get(self.columns[name], StringType())) for name in chosen])

    def arrow_schema(self, asked: StructType) -> Any:
        """Return the columns of a schema of Spark as Arrow has them; InvalidArgument for one that the table lacks."""
        for field, known in zip(asked, self.spark_schema(asked.names), strict=True):
            if field.dataType != known.dataType:
                raise InvalidArgument(
                    f"column {field.name!r} is {known.dataType.simpleString()}, not "
                    f"{field.dataType.simpleString()}. Leave out schema(), and cast afterwards."
                )
        return to_arrow_schema(asked, timezone="UTC")

    def statement(self, names: Iterable[str], conditions: Collection[sql.Composable]) -> str:
        """Return the SELECT of the rows that meet all conditions."""
        values = [sql.SQL(_SELECT.get(self.columns[name], "{}")).format(sql.Identifier(name)) for name in names]
        parts = (sql.SQL(", ").join(values), self.relation, both(conditions))
        return sql.SQL(query("rows").decode()).format(*parts).as_string()


def _columns(text: str) -> dict[str, str]:
    return dict(column.split() for column in text.split(","))


_TEXTS: Final = ", ".join(f"{name} text" for name in TEXTS)

ARCHIVE: Final = Table(
    "archive",
    sql.Identifier("messages", "message_archive"),
    "archived_at",
    _columns(
        f"""
        id bigint, queue_name text, result text, created_at timestamptz, leased_at timestamptz, archived_at timestamptz,
        attempts smallint, priority smallint, requeues smallint, requeued_from bigint, handled_by text, details text,
        {_TEXTS}, fingerprint text, resolution text, resolved_at timestamptz,
        resolved_by text, requeued_as bigint, dismissed_for text, headers jsonb, output jsonb, failure jsonb,
        message jsonb, xid bigint
        """
    ),
)
# lock_token is left out: it is the right to finish a message, and a reader has leased nothing.
_QUEUE: Final = Table(
    "queue",
    sql.Identifier("messages", "message"),
    "created_at",
    _columns(
        f"""
        id bigint, queue_name text, created_at timestamptz, visible_at infinite, leased_at timestamptz,
        lock_expires_at infinite, expires_at infinite, due_at infinite, attempts smallint, priority smallint,
        requeues smallint, requeued_from bigint, locked_by text, {_TEXTS},
        last_error text, headers jsonb, message jsonb
        """
    ),
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


def conditions(options: Mapping[str, str]) -> list[sql.Composable]:
    """Return what the options `queue`, `result`, `reference` and `topic` are in SQL."""
    listed = (("queue_name", given.queues(options)), ("result", given.names(options, "result", RESULTS)))
    found: list[sql.Composable] = [
        sql.SQL("{} IN ({})").format(sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, values)))
        for name, values in listed
        if values
    ]
    if "reference" in options:
        found.append(compare("reference", "=", options["reference"]))
    if (pattern := options.get("topic")) is not None:
        if fix := topic_pattern(pattern):
            raise InvalidArgument(f"option topic is {pattern[:50]!r}", fix)
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
