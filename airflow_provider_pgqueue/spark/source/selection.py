"""What a read asks for: columns and rows of one table, as its options say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import sql

from airflow_provider_pgqueue.core.argument import topic_pattern
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.schema import TABLES, Table, TableColumn

OPTIONS: Final = ("table", "columns", "queue", "result", "reference", "topic", "where", "from", "to", "numPartitions")
_IN_A_PATTERN: Final = {"*": r"\.[^.]+", "#": r"(\.[^.]+)*"}


@dataclass(frozen=True, slots=True)
class Span:
    """The moments from `begin` to before `end`; None leaves that side open."""

    begin: datetime | None = None
    end: datetime | None = None

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Span:
        """Return the span between the options `from` and `to`, ISO 8601 moments with time zone."""
        span = cls(*(given.moment(name, options[name]) if name in options else None for name in ("from", "to")))
        if span.begin and span.end and span.begin > span.end:
            raise InvalidArgument(f"option from ({options['from']}) is after option to ({options['to']}). Swap them.")
        return span

    @property
    def is_empty(self) -> bool:
        """Whether no moment is in it."""
        return self.begin is not None and self.end is not None and self.begin >= self.end

    def __and__(self, other: Span) -> Span:
        """Return the moments that are in both."""
        begins = [begin for begin in (self.begin, other.begin) if begin]
        ends = [end for end in (self.end, other.end) if end]
        return Span(max(begins, default=None), min(ends, default=None))

    def conditions(self, column: str) -> list[sql.Composable]:
        """Return the SQL conditions that a column lies in it."""
        sides = [(">=", self.begin), ("<", self.end)]
        return [compare(column, sign, moment) for sign, moment in sides if moment]


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns of a table, in a span of its time, that meet all conditions; to be read in at most `max_ranges`.

    `where` is a condition in SQL of whoever writes the job. It stands in parentheses and in lines of its own; that it
    cannot reach beyond them is checked by the server, see `checks`.
    """

    table: Table
    columns: tuple[TableColumn, ...]
    span: Span = Span()
    conditions: tuple[sql.Composable, ...] = ()
    where: str | None = None
    max_ranges: int = 8

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Selection:
        """Return what the options of a DataFrame ask for; InvalidArgument names the one that is wrong."""
        given.check_names(options, OPTIONS, "A read")
        table = table_of(options)
        if "result" in options and "result" not in (column.name for column in table.columns):
            raise InvalidArgument(f"the {table.name} has no results. Leave out option result, or read the archive.")
        return cls(
            table,
            columns(options),
            Span.of_options(options),
            tuple(conditions(options)),
            options.get("where"),
            given.number(options, "numPartitions", 8, at_most=9999),
        )

    def statement(self, *more: sql.Composable) -> sql.Composed:
        """Return the SELECT of the rows that meet these conditions too."""
        where = [] if self.where is None else [sql.SQL("(\n") + sql.SQL(self.where) + sql.SQL("\n)")]
        return self.table.statement(self.columns, [*self.conditions, *where, *more])

    def checks(self) -> list[str]:
        """Return statements that PostgreSQL accepts only if `where` is one whole condition; they read no row.

        Within parentheses it cannot end with ORDER BY or be a SELECT, and without any it cannot close one that it did
        not open. A comment or a text that does not end is an error in both. Run each alone, as one statement.
        """
        if self.where is None:
            return []
        explain = f"EXPLAIN SELECT FROM {self.table.relation.as_string(None)} WHERE"
        return [f"{explain}\n{self.where}\n", f"{explain} (\n{self.where}\n)"]


def table_of(options: Mapping[str, str]) -> Table:
    """Return the table that a read names; there is no default, because options may be lost on the way."""
    if "table" not in options:
        raise InvalidArgument(
            "option table is missing. Give archive (what is finished) or queue (what waits or is leased). Spark hands "
            "no options of CREATE TABLE on to a read: use CREATE TEMPORARY VIEW ... USING pgqueue OPTIONS (...)."
        )
    return TABLES[given.choice(options, "table", TABLES)]


def columns(options: Mapping[str, str]) -> tuple[TableColumn, ...]:
    """Return the columns that the options `table` and `columns` name; it ignores others, which a stream may have."""
    return table_of(options).select(given.names(options, "columns"))


def conditions(options: Mapping[str, str]) -> list[sql.Composable]:
    """Return what the options `queue`, `result`, `reference` and `topic` are in SQL."""
    listed = (("queue_name", given.queues(options)), ("result", given.results(options)))
    found: list[sql.Composable] = [_one_of(name, values) for name, values in listed if values]
    if "reference" in options:
        found.append(compare("reference", "=", options["reference"]))
    if "topic" in options:
        found.append(sql.SQL("'.' || topic ~ {}").format(sql.Literal(_topic_regex(options["topic"]))))
    return found


def compare(column: str, sign: str, value: Any) -> sql.Composed:
    """Return the condition that a column and a value meet."""
    return sql.SQL("{} {} {}").format(sql.Identifier(column), sql.SQL(sign), sql.Literal(value))


def _one_of(name: str, values: list[str]) -> sql.Composed:
    return sql.SQL("{} IN ({})").format(sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, values)))


def _topic_regex(pattern: str) -> str:
    """Return the regular expression that messages.topic_regex() makes, which a reader may not call."""
    if cure := topic_pattern(pattern):
        raise InvalidArgument(f"option topic is {pattern[:50]!r}", cure)
    return "^" + "".join(_IN_A_PATTERN.get(word, rf"\.{word}") for word in pattern.split(".")) + "$"
