"""Copies Arrow rows as text, one line for each, so that the line that PostgreSQL refuses is the row to name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, PgQueueError, translate

_CHUNK: Final = 256 * 1024
_TEXT: Final = pa.large_string()
_TAB, _LINE_END, _NULL = (pa.scalar(text, _TEXT) for text in ("\t", "\n", "\\N"))
_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_ROW: Final = re.compile(r"^COPY \w+, line (\d+)", re.M)
_RULES: Final = {
    "headers": "its headers are no JSON object, or larger than 64 kB. Give a small object, or NULL.",
    "queue_name": "its queue_name is NULL. Name a queue in each row, or leave out the column and give option queue.",
    "reference": "its reference is too long. Give a text of at most 2,600 bytes, or NULL.",
    "topic": "its topic is not valid. Use words of letters, digits, - and _ with single dots between them.",
    "group_key": "its group_key is empty or too long. Give a text of 1 to 255 characters, or NULL.",
    "dedup_key": "its dedup_key is empty or too long. Give a text of 1 to 255 characters, or NULL.",
    "priority": "its priority is out of range. Give a whole number from -100 to 100, or NULL.",
    "visible_at": "its visible_at is too far away. Give a moment within the next ten years, or NULL.",
    "expires_at": "its expires_at is too far away. Give a moment within the next ten years, or NULL.",
}


def lines(batch: pa.RecordBatch, *, attempt: int, after: int) -> memoryview:
    """Return the rows of a batch as lines: the attempt, the ordinal, which goes on after `after`, and the columns."""
    ordinals = pa.array(range(after + 1, after + 1 + batch.num_rows), pa.int64())
    fields = [pa.scalar(str(attempt), _TEXT), ordinals.cast(_TEXT), *map(_field, batch.columns)]
    joined = pc.binary_join_element_wise(*fields, _TAB, null_handling="replace", null_replacement=_NULL.as_py())
    ended = pc.binary_join_element_wise(joined, pa.scalar("", _TEXT), _LINE_END)
    # The characters of an array lie one after the other: no copy, and no Python object for each row.
    return memoryview(ended.buffers()[2])[: pc.sum(pc.binary_length(ended)).as_py() or 0]


def _field(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz="UTC")).cast(_TEXT)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(_TEXT)
    field = column.cast(_TEXT)
    for character, escaped in _ESCAPES:
        field = pc.replace_substring(field, character, escaped)
    return field


def copy(
    conn: psycopg.Connection[Any], table: str | None, columns: Sequence[str], file: IO[bytes], partition: int
) -> None:
    """Copy lines into a stage. An error names the row, and quotes no content as DETAIL and CONTEXT do."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN (ENCODING 'UTF8')").format(
        sql.Identifier(*str(table).split(".")),
        sql.SQL(", ").join(map(sql.Identifier, ["attempt", "ordinal", *columns])),
    )
    try:
        with conn.cursor() as cursor, cursor.copy(statement) as copy:
            while chunk := file.read(_CHUNK):
                copy.write(chunk)
    except psycopg.Error as error:
        raise _refusal(error, partition) from None


def _refusal(error: psycopg.Error, partition: int) -> PgQueueError:
    """Return the error of the tree for a COPY that failed."""
    place = _ROW.search(error.diag.context or "")
    row = f"row {place[1]} of partition {partition} cannot be published: " if place else ""
    if error.diag.constraint_name in _RULES:
        return InvalidArgument(row + _RULES[error.diag.constraint_name])
    if error.sqlstate == "23502":
        return InvalidMessage(row + "its message is NULL. Leave such rows out, or publish the JSON text null.")
    known = translate(error)
    kind = type(known) if isinstance(known, PgQueueError) else PgQueueError
    if kind is InvalidMessage:
        row += "its message or headers are no JSON that PostgreSQL can store: "
    return kind(row + (error.diag.message_primary or str(error).strip()))
