"""Why PostgreSQL refused a row: with the number of the row, without the content that DETAIL and CONTEXT quote."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, PgQueueError, translate

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


def refusal(error: psycopg.Error, partition: int) -> PgQueueError:
    """Return the error of the tree for a COPY that failed; raise it `from None`, because its cause quotes the body."""
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
