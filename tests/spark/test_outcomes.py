"""Outcomes out of a table: what a row says, which of them cannot be kept, and what PostgreSQL makes of the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Rejected, Retry, Success
from airflow_provider_pgqueue.spark.jobs.drain.batches import outcomes_of
from airflow_provider_pgqueue.spark.source.outcomes import parse_outcomes

OUTPUTS = [
    "null",
    '{"b": [1, 2.50, -0.000, 1e5, 1.5E-3, 12345678901234567890.1], "a": "ü\\u00fc\\n\\" 𝄞 \\\\\\\\u0000"}',
    "  [ 1e400 ]  ",
    "1E-16383",
    f'"{"x" * 65534}"',
    f"[{', '.join(['1e300'] * 216)}]",
]
REFUSED = [
    "",
    "{",
    "NaN",
    "[Infinity]",
    '"\\u0000"',
    '"\\\\\\u0000"',
    '"\0"',
    '"\\ud800"',
    "1e70000",
    "1e-20000",
    "[" * 9000,
]
TOO_LARGE = [f'"{"x" * 65535}"', f"[{', '.join(['1e300'] * 217)}]", f'"{"ü" * 32768}"', "1" * 4000 + "e61537"]


def parsed(*rows: Mapping[str, Any]) -> list[tuple[int, Outcome]]:
    return list(parse_outcomes(pa.Table.from_pylist(list(rows)), giver="the function"))


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({}, Success()),
        ({"result": None, "details": "fine"}, Success("fine")),
        ({"result": "success", "output": "[1.10]", "delay_seconds": 7}, Success(None, "[1.10]")),
        ({"result": "rejected", "output": "{}"}, Rejected("rejected by the function", "{}")),
        ({"result": "failed", "details": "a\0b"}, Failed("a\ufffdb")),
        ({"result": "retry", "output": "not kept"}, Retry()),
        ({"result": "retry", "delay_seconds": 1.5, "details": "busy"}, Retry(timedelta(seconds=1.5), "busy")),
        ({"result": "retry", "delay_seconds": float("nan")}, Retry()),
    ],
    ids=str,
)
def test_a_row_says_how_its_message_ends(row: dict[str, Any], outcome: Outcome) -> None:
    assert parsed({"id": 7} | row) == [(7, outcome)]


@pytest.mark.parametrize("output", OUTPUTS, ids=range(len(OUTPUTS)))
def test_an_output_that_is_kept_is_stored_digit_for_digit(conn: psycopg.Connection[Any], output: str) -> None:
    ((_, outcome),) = parsed({"id": 1, "output": output})
    assert isinstance(outcome, Success)
    row = conn.execute("SELECT octet_length(%(text)s::jsonb::text) <= 65536", {"text": outcome.output}).fetchone()
    assert row == (True,)
    conn.execute("SELECT messages.check_outcomes(NULL, %s::jsonb, NULL)", [outcome.output])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        *(({"output": text}, "its output is not JSON that PostgreSQL can store") for text in REFUSED),
        *(({"output": text}, "Give at most 65536") for text in TOO_LARGE),
        ({"result": "retry", "delay_seconds": -1.0}, "delay_seconds is -1.0"),
        ({"result": "retry", "delay_seconds": float("inf")}, "delay_seconds is inf"),
        ({"result": "rejected", "output": "{"}, "its output is not JSON"),
    ],
    ids=range(len(REFUSED) + len(TOO_LARGE) + 3),
)
def test_one_that_cannot_be_kept_fails_its_message_alone_for_a_drain_and_for_a_stream(
    caplog: pytest.LogCaptureFixture, bad: dict[str, Any], why: str
) -> None:
    rows = [{"id": 1, "result": "success", "output": "1", "delay_seconds": None} | bad, {"id": 2, "result": "success"}]
    with caplog.at_level(logging.WARNING):
        ((_, first), (_, second)) = parsed(*rows)
    assert isinstance(first, Failed)
    assert why in first.details
    assert second == Success()
    assert caplog.messages == [f"message 1 ends as failed, not as {rows[0]['result']}: {first.details}"]
    assert outcomes_of(pa.Table.from_pylist(rows), {1, 2}) == {1: first, 2: second}


@pytest.mark.parametrize("text", [text for text in (*REFUSED, *TOO_LARGE) if "\0" not in text], ids=len)
def test_postgresql_would_refuse_what_is_refused_here(conn: psycopg.Connection[Any], text: str) -> None:
    with pytest.raises(psycopg.Error):
        conn.execute("SELECT messages.check_outcomes(NULL, %s::jsonb, NULL)", [text])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"id": 1, "result": "sucess"}, "gave the result 'sucess'. Give one of success, rejected, failed, retry"),
        ({"id": None}, "gave the column id as null"),
        ({"id": "1"}, "gave the column id as string. Give whole numbers"),
        ({"id": 1, "output": {"a": 1}}, "gave the column output as struct<a: int64>. Give JSON as text"),
        ({"id": 1, "delay_seconds": "1"}, "gave the column delay_seconds as string. Give numbers"),
    ],
    ids=str,
)
def test_what_is_wrong_with_all_rows_is_an_error(row: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why.replace("[", r"\[")):
        parsed(row)
