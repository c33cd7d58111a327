"""Leased messages as they come from the database: read by position, and the JSON of all of them in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, Final

import psycopg
from psycopg.pq import Format
from psycopg.types.json import JsonbBinaryLoader

from airflow_provider_pgqueue.core.connection import JSONB
from airflow_provider_pgqueue.core.json_text import read_json
from airflow_provider_pgqueue.core.message import TRAVELS, Message
from airflow_provider_pgqueue.core.query import query

_AT_ONCE: Final = 1_000_000  # characters of JSON that are read together: a second copy in memory
_VERSION: Final = b"\1"  # that the driver expects before the text of a jsonb in binary
_NAMES: Final = [field.name for field in fields(Message)]
_BODY: Final = _NAMES.index("body")
_HEADERS: Final = _NAMES.index("headers")
TOKEN: Final = _NAMES.index("lock_token")
_JSON: Final = {"message", *(name for name, kind in TRAVELS.items() if kind == "jsonb")}


@cache
def message_query(name: str) -> bytes:
    """Return a query of sql/queries/ whose rows begin with the fields of a Message, body and headers as JSON text."""
    return selecting(name, ["message" if field == "body" else field for field in _NAMES])


def selecting(name: str, columns: Iterable[str]) -> bytes:
    """Return a query of sql/queries/ with these columns of a lease as its {columns}, JSON as its text."""
    # Named, because PostgreSQL refuses a prepared statement whose result changed, as that of l.* does in an upgrade.
    found = ", ".join(f"l.{column}::text" if column in _JSON else f"l.{column}" for column in columns)
    return query(name).replace(b"{columns}", found.encode())


def messages_of(rows: list[tuple[Any, ...]], read_all: Callable[[list[str]], list[Any]]) -> list[Message]:
    """Return rows with the fields of a Message in order, body and headers as JSON text, as messages."""
    # One call for all costs less than a call for each message.
    texts = [row[_BODY] for row in rows] + [text for row in rows if (text := row[_HEADERS]) is not None]
    values = iter(read_all(texts)) if texts else iter(())
    found = [Message(*row) for row in rows]
    for message in found:
        message.body = next(values)
    for message in found:
        if message.headers is not None:
            message.headers = next(values)
    return found


def json_reader(conn: psycopg.Connection[Any]) -> Callable[[list[str]], list[Any]]:
    """Return what reads the JSON texts of a batch, in one call unless the caller chose how the connection reads."""
    loader = conn.adapters.get_loader(JSONB, Format.BINARY)
    if loader is None or loader is JsonbBinaryLoader or getattr(loader, "_loads", None) is read_json:
        return _read_all_json
    load = loader(JSONB, conn).load
    return lambda texts: [load(_VERSION + text.encode()) for text in texts]


def _read_all_json(texts: list[str]) -> list[Any]:
    if len(texts) > 1 and sum(map(len, texts)) <= _AT_ONCE:
        try:
            found: list[Any] = json.loads(f"[{','.join(texts)}]")
            return found
        except (ValueError, RecursionError):
            pass  # one text is unreadable: only reading each of them shows which one
    return [read_json(text) for text in texts]
