"""Outcomes out of a table: what a row says, which of them cannot be kept, and what PostgreSQL makes of the others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.consumer.lease_base import LeaseBase
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Outcome, Outcomes, Rejected, Retry, Success
from airflow_provider_pgqueue.spark.pipelines.drain.outcomes import outcomes_of

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
    "1e-20000",
    "[" * 9000,
]
TOO_LARGE = [f'"{"x" * 65535}"', f"[{', '.join(['1e300'] * 217)}]", f'"{"ü" * 32768}"', "1e70000"]


Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def parsed(*rows: Mapping[str, Any]) -> Outcomes:
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    return outcomes_of(table, [row["id"] for row in rows])


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({"result": "success"}, None),
        ({"result": "success", "details": "fine"}, Success("fine")),
        ({"result": "success", "output": "[1.10]", "delay_seconds": 7}, Success(output="[1.10]")),
        ({"result": "rejected", "output": "{}"}, Rejected("rejected by the function", "{}")),
        ({"result": "rejected", "details": ""}, Rejected("rejected by the function")),
        ({"result": "failed"}, Failed("failed, says the function")),
        ({"result": "retry", "output": "not kept"}, Retry()),
        ({"result": "retry", "delay_seconds": 1.5, "details": "busy"}, Retry(timedelta(seconds=1.5), "busy")),
        ({"result": "retry", "delay_seconds": float("nan")}, Retry()),
    ],
    ids=str,
)
def test_a_row_says_how_its_message_ends(row: dict[str, Any], outcome: Outcome | None) -> None:
    # Next to others, because it is read by columns.
    others = [{"id": 1, "result": "success"}, {"id": 9, "result": "rejected", "details": "no"}]
    assert parsed(others[0], {"id": 7} | row, others[1]) == {1: None, 7: outcome, 9: Rejected("no")}


def test_a_table_without_rows_says_nothing() -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "result": pa.array([], pa.string())})
    assert outcomes_of(empty, [1, 2]) == {1: None, 2: None}


def settle(conn: Connection, token: UUID, outcomes: Outcomes) -> LeaseBase:
    lease = LeaseBase(conn, token, outcomes)
    for id_, outcome in outcomes.items():
        lease.gather(id_, outcome or PLAIN)
    lease.settle_handled()
    return lease


def settled(conn: Connection, *rows: Mapping[str, Any]) -> dict[int, Any]:
    """Publish and lease a message for each row, settle them as the rows say, and return what the archive has by row."""
    run(conn, verbs.publish_batch("orders", range(len(rows))))
    messages = sorted(run(conn, verbs.lease("orders", max_messages=len(rows))), key=lambda message: int(message.body))
    token = messages[0].lock_token
    assert token
    named = [{"id": message.id, "result": "success"} | row for message, row in zip(messages, rows, strict=True)]
    outcomes = parsed(*named)
    lease = settle(conn, token, outcomes)
    assert (lease.held_ids, lease.lost) == (set(), set())
    found = conn.execute("SELECT message, result, details, output::text, fingerprint FROM messages.message_archive")
    return {place: rest for place, *rest in found}


def test_an_output_that_is_kept_is_stored_digit_for_digit(conn: Connection, queue: Queue) -> None:
    queue("orders")
    found = settled(conn, *({"output": output} for output in OUTPUTS))
    for place, output in enumerate(OUTPUTS):
        row = conn.execute("SELECT %s::jsonb::text", [output]).fetchone()
        assert row is not None
        assert found[place] == ["success", None, row[0], None]


BAD = [
    *(({"output": text}, "JSON") for text in REFUSED),
    *(({"output": text}, "Give at most 65536") for text in TOO_LARGE),
    ({"result": "retry", "delay_seconds": -1.0}, "delay_seconds is -1.0"),
    ({"result": "retry", "delay_seconds": float("inf")}, "delay_seconds is inf"),
    ({"result": "rejected", "output": "{"}, "its output is not JSON"),
    ({"output": '{"secret": "\\u0000"}'}, "its Success cannot be kept: "),
    # Each output is a value of its own: none reaches into the outcome of another message.
    ({"output": '1}, "1": {"result": "failed"'}, "its output is not JSON"),
]


def test_one_that_cannot_be_kept_fails_its_message_alone(
    conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")
    good = {"result": "success", "output": "2"}
    rows = [row for bad, _ in BAD for row in (good | {"output": "1", "delay_seconds": None} | bad, good)]
    with caplog.at_level(logging.WARNING):
        found = settled(conn, *rows)
    for place, (_, why) in enumerate(BAD):
        assert found[2 * place][0] == "failed"
        assert why in found[2 * place][1]
        assert "secret" not in found[2 * place][1]
        assert found[2 * place][3] is not None
        assert found[2 * place + 1][:3] == ["success", None, "2"]
    # Of those that PostgreSQL refuses the first one alone: the others of a lease are likely to be like it.
    assert caplog.text.count("ends as failed: its Success cannot be kept") == 1
    assert all("ends as failed" in line and "secret" not in line for line in caplog.messages)


def test_in_a_transaction_too_one_that_cannot_be_kept_fails_its_message_alone(conn: Connection, queue: Queue) -> None:
    queue("orders")
    with conn.transaction():
        found = settled(conn, {"output": '"\\u0000"'}, {"output": "1"}, {"output": "2"})
    assert [found[place][0] for place in range(3)] == ["failed", "success", "success"]


def test_what_is_lost_is_named_and_the_others_are_settled(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(4)))
    messages = run(conn, verbs.lease("orders", max_messages=4))
    ids, token = [message.id for message in messages], messages[0].lock_token
    assert token
    run(conn, verbs.archive(token, [ids[1], ids[3]]))
    given = parsed(*({"id": id_, "result": "retry" if id_ == ids[3] else "success"} for id_ in ids))
    lease = settle(conn, token, given)
    assert (lease.counts, lease.lost) == (Counter(success=2, lost=2), {ids[1], ids[3]})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"id": 1, "result": "sucess"}, "gave the result 'sucess'. Give one of success, rejected, failed, retry"),
        ({"id": 1, "result": None}, "gave a row without a result"),
        ({"id": None}, "gave the column id as null"),
        ({"id": "1"}, "gave the column id as string. Give whole numbers"),
        ({"id": 1, "output": {"a": 1}}, "gave the column output as struct<a: int64>. Give JSON as text"),
        ({"id": 1, "delay_seconds": "1"}, "gave the column delay_seconds as string. Give numbers"),
    ],
    ids=str,
)
def test_what_is_wrong_with_all_rows_is_an_error(row: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why.replace("[", r"\[")):
        parsed({"result": "success"} | row)
