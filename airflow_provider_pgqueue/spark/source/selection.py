"""What a read asks for: its options, checked, and the filters that were pushed down to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.schema import TABLES, Column, Table
from airflow_provider_pgqueue.spark.source.span import Span

OPTIONS: Final = ("table", "columns", "queue", "result", "from", "to", "numPartitions", "pushFilters")


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns of a table, in a span of its time, that meet all conditions; to be read in at most `max_ranges`."""

    table: Table
    columns: tuple[Column, ...]
    span: Span = Span.ALWAYS
    conditions: tuple[sql.Composable, ...] = ()
    max_ranges: int = 8

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Selection:
        """Return what the options of a DataFrame ask for; InvalidArgument names the one that is wrong."""
        given.check_names(options, OPTIONS, "A read")
        table = _table(options)
        queues, results = given.queues(options), given.results(options)
        if results and "result" not in (column.name for column in table.columns):
            raise InvalidArgument(f"the {table.name} has no results. Leave out option result, or read the archive.")
        return cls(
            table,
            columns(options),
            Span.of_texts(options.get("from"), options.get("to")),
            tuple(_one_of(name, values) for name, values in (("queue_name", queues), ("result", results)) if values),
            _max_ranges(options),
        )

    def statement(self, *conditions: sql.Composable) -> sql.Composed:
        """Return the SELECT of the rows that meet these conditions too."""
        where = [*self.conditions, *conditions]
        return sql.SQL("SELECT {} FROM {}{}{}").format(
            sql.SQL(", ").join(column.expression for column in self.columns),
            self.table.relation,
            sql.SQL(" WHERE " if where else ""),
            sql.SQL(" AND ").join(where),
        )


def columns(options: Mapping[str, Any], table: Table | None = None) -> tuple[Column, ...]:
    """Return the columns that the options `table` and `columns` name; for streams too, so it minds no other option."""
    return (table or _table(options)).select(given.names(options, "columns"))


def pushes_filters(options: Mapping[str, Any]) -> bool:
    """Return whether the filters of Spark are to be pushed down."""
    value = str(options.get("pushFilters", "false")).lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"option pushFilters is {value!r}. Give true or false.")
    return value == "true"


def _table(options: Mapping[str, Any]) -> Table:
    name = options.get("table", "archive")
    if name not in TABLES:
        raise InvalidArgument(f"option table is {name!r}. Give one of {', '.join(TABLES)}.")
    return TABLES[name]


def _max_ranges(options: Mapping[str, Any]) -> int:
    text = str(options.get("numPartitions", "8"))
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < 1:
        raise InvalidArgument(f"option numPartitions is {text!r}. Give a number from 1 to 9999.")
    return int(text)


def _one_of(name: str, values: list[str]) -> sql.Composed:
    return sql.SQL("{} IN ({})").format(sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, values)))
