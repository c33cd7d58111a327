"""The columns that the streams give, as Spark and as SQL know them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.sql.types import DataType, LongType, ShortType, StringType, StructField, StructType, TimestampType

from airflow_provider_pgqueue.core.errors import InvalidArgument

_JSON: Final = frozenset({"headers", "output", "failure", "message"})
_ARCHIVE: Final[dict[str, DataType]] = {
    "id": LongType(),
    "queue_name": StringType(),
    "result": StringType(),
    "created_at": TimestampType(),
    "leased_at": TimestampType(),
    "archived_at": TimestampType(),
    "attempts": ShortType(),
    "priority": ShortType(),
    "requeues": ShortType(),
    "requeued_from": LongType(),
    "handled_by": StringType(),
    "details": StringType(),
    "reference": StringType(),
    "topic": StringType(),
    "group_key": StringType(),
    "fingerprint": StringType(),
    "remedy": StringType(),
    "remedied_at": TimestampType(),
    "remedied_by": StringType(),
    "requeued_as": LongType(),
    "dismissed_for": StringType(),
    "headers": StringType(),
    "output": StringType(),
    "failure": StringType(),
    "message": StringType(),
    "xid": LongType(),
}
_LEASED: Final[dict[str, DataType]] = {
    "id": LongType(),
    "queue_name": StringType(),
    "message": StringType(),
    "headers": StringType(),
    "reference": StringType(),
    "priority": ShortType(),
    "attempts": ShortType(),
    "max_attempts": ShortType(),
    "requeues": ShortType(),
    "created_at": TimestampType(),
    "lock_token": StringType(),
    "lock_expires_at": TimestampType(),
}


def archive_columns(names: Sequence[str] = ()) -> StructType:
    """Return the columns of the archive, or some of them; InvalidArgument for one that there is not."""
    return _columns(_ARCHIVE, names)


def leased_columns(names: Sequence[str] = ()) -> StructType:
    """Return the columns of a leased message, or some of them."""
    return _columns(_LEASED, names)


def expressions(schema: StructType) -> Iterator[str]:
    """Return what to select for each column: text for what Arrow has no type for."""
    for field in schema:
        yield f"{field.name}::text AS {field.name}" if field.name in _JSON | {"lock_token"} else field.name


def _columns(known: dict[str, DataType], names: Sequence[str]) -> StructType:
    if unknown := set(names) - set(known):
        raise InvalidArgument(f"option columns has {sorted(unknown)[0][:50]!r}. Give some of {', '.join(known)}.")
    return StructType([StructField(name, known[name]) for name in names or known])
