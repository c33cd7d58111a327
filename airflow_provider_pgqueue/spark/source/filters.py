"""Filters of Spark as conditions of SQL, where both mean exactly the same; what is not translated stays with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from airflow_provider_pgqueue.spark.source.schema import BIGINT, FINITE, JSON, MOMENT, SMALLINT, TEXT, Column, Kind
from airflow_provider_pgqueue.spark.source.span import Span

# Not for texts: PostgreSQL orders them by their collation, Spark by their bytes.
_ORDER: Final[dict[type[Filter], str]] = {
    GreaterThan: "{} > {}",
    GreaterThanOrEqual: "{} >= {}",
    LessThan: "{} < {}",
    LessThanOrEqual: "{} <= {}",
}
_SAME: Final[dict[type[Filter], str]] = {EqualTo: "{} = {}", EqualNullSafe: "{} IS NOT DISTINCT FROM {}"}
_TEXT: Final[dict[type[Filter], str]] = {StringStartsWith: "starts_with({}, {})", StringContains: "strpos({}, {}) > 0"}
_NULL: Final[dict[type[Filter], str]] = {IsNull: "{} IS NULL", IsNotNull: "{} IS NOT NULL"}
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def condition(given: Filter, columns: Mapping[str, Column]) -> sql.Composable | None:
    """Return the condition that a filter is in SQL, or None if Spark has to apply it.

    Bodies, headers and other JSON are compared by Spark: their text would stand in the server's views and log.
    """
    if isinstance(given, Not):
        inner = condition(given.child, columns)
        return inner and sql.SQL("NOT ({})").format(inner)
    column = columns.get(".".join(getattr(given, "attribute", ())))
    return _condition(given, column) if column else None


def _condition(given: Any, column: Column) -> sql.Composable | None:
    if type(given) in _NULL:
        return sql.SQL(_NULL[type(given)]).format(column.value)
    if isinstance(given, In):
        values = [_literal(value, column.kind) for value in given.value]
        found = [value for value in values if value]
        if not found or len(found) < len(values):
            return None
        return sql.SQL("{} IN ({})").format(column.value, sql.SQL(", ").join(found))
    template = _templates(column.kind).get(type(given))
    value = _literal(given.value, column.kind) if template else None
    return sql.SQL(template).format(column.value, value) if template and value else None


def _templates(kind: Kind) -> dict[type[Filter], str]:
    if kind is JSON:
        return {}
    return _SAME | (_TEXT if kind is TEXT else _ORDER)


def _literal(value: Any, kind: Kind) -> sql.Composable | None:
    """Return a value quoted, or None for one that PostgreSQL has no such value for."""
    if kind is TEXT and isinstance(value, str) and "\0" not in value:
        return sql.Literal(value)
    if kind in (BIGINT, SMALLINT) and isinstance(value, int) and not isinstance(value, bool):
        return sql.Literal(value)
    if kind in (MOMENT, FINITE) and isinstance(value, datetime) and value.tzinfo:
        return sql.Literal(value)
    return None


def span(given: Filter, moment: str) -> Span | None:
    """Return the span that a filter leaves of the time of a table, or None if it is no filter for that."""
    value = getattr(given, "value", None)
    if getattr(given, "attribute", None) != (moment,) or not isinstance(value, datetime) or not value.tzinfo:
        return None
    begins = {GreaterThanOrEqual: value, EqualTo: value, GreaterThan: _after(value)}
    ends = {LessThan: value, EqualTo: _after(value), LessThanOrEqual: _after(value)}
    kind = type(given)
    return Span(begins.get(kind), ends.get(kind)) if kind in begins or kind in ends else None


def _after(moment: datetime) -> datetime:
    """Return the next moment that PostgreSQL and Spark can tell from this one."""
    return moment + timedelta(microseconds=1) if moment < _LAST else moment
