"""What a handler returns or raises concerns its own message, and no other of the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    InvalidOutcome,
    Message,
    Rejected,
    Retry,
    Success,
    run,
    verbs,
)

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


class Mute(Exception):
    """An exception that cannot say its text."""

    def __str__(self) -> str:
        raise ValueError("no text")


UNKEEPABLE: dict[str, tuple[Any, str]] = {
    "a large output": (Success(output="y" * 70_000), "Success cannot be kept: an output or failure has"),
    "no number": (Success(output=float("nan")), "Success cannot be kept: the value is not JSON"),
    "no JSON": (Success(output=object()), "Success cannot be kept: the value is not JSON"),
    "NUL in the output": (Success(output="a\0b"), "Success cannot be kept: "),
    "a delay of years": (Retry(delay=timedelta(days=4000)), "Retry cannot be kept: delay is"),
    "a delay into the past": (Retry(delay=timedelta(seconds=-1)), "Retry cannot be kept: delay is"),
    "a failure without end": (Failed("no", failure={"message": "y" * 70_000}), "Failed cannot be kept: "),
}


@pytest.mark.parametrize("name", UNKEEPABLE)
@pytest.mark.parametrize("at_once", [False, True])
def test_an_outcome_that_cannot_be_kept_fails_its_own_message_alone(
    conn: Connection, queue: Queue, name: str, at_once: bool
) -> None:
    bad, reason = UNKEEPABLE[name]
    run(conn, verbs.publish_batch(queue("orders"), list(range(20))))
    handled: list[int] = []

    def handle(message: Message) -> Any:
        handled.append(message.body)
        return bad if message.body == 13 else Retry(delay=timedelta(hours=1)) if message.body == 14 else None

    consumer = (
        Consumer(queue_name="orders", handle_batch=lambda messages: [handle(message) for message in messages])
        if at_once
        else Consumer(queue_name="orders", handle=handle)
    )
    assert consumer.drain(conn) == {"success": 18, "failed": 1, "retried": 1}
    assert handled == list(range(20))
    failed = conn.execute("SELECT message, details FROM messages.message_archive WHERE result = 'failed'").fetchall()
    assert [body for body, _ in failed] == [13]
    assert failed[0][1].startswith(f"its {reason}")


def test_texts_that_postgresql_cannot_store_lose_only_those_characters(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    said = [Rejected("a\0b"), Failed("a\ud800b"), Success("a\0b"), Retry(details="a\ud800b")]
    Consumer(queue_name="orders", handle=lambda message: said[message.body]).drain(conn)
    kept = conn.execute("SELECT details, result FROM messages.message_archive ORDER BY message").fetchall()
    assert kept == [("a\ufffdb", "rejected"), ("a?b", "failed"), ("a\ufffdb", "success"), ("a?b", "failed")]


def test_an_exception_without_a_text_is_a_failed_attempt_of_its_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), [1, 2]))

    def handle(message: Message) -> None:
        if message.body == 1:
            raise Mute

    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"failed": 1, "success": 1}


@pytest.mark.parametrize("wrong", [True, False, "done", {"result": "success"}, object()])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_no_outcome_ends_the_consumer_and_costs_no_attempt(
    conn: Connection, queue: Queue, wrong: Any, at_once: bool
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(5))))
    handled: list[int] = []

    def handle(message: Message) -> Any:
        handled.append(message.body)
        return wrong if message.body == 2 else None

    consumer = (
        Consumer(queue_name="orders", handle_batch=lambda messages: [handle(message) for message in messages])
        if at_once
        else Consumer(queue_name="orders", handle=handle)
    )
    kind = type(wrong).__name__
    with pytest.raises(InvalidOutcome, match=rf"queue 'orders' returned {kind} for message \d+\. Return None"):
        consumer.drain(conn)
    assert handled == ([0, 1, 2, 3, 4] if at_once else [0, 1, 2])
    assert conn.execute("SELECT message, result FROM messages.message_archive ORDER BY 1").fetchall() == [
        (0, "success"),
        (1, "success"),
    ]
    # Later than the others, or it would be the first of its queue for ever, and all that come after it would wait.
    query = "SELECT message, attempts, lock_token, visible_at > clock_timestamp() FROM messages.message ORDER BY 1"
    left = conn.execute(query).fetchall()
    assert left == [(2, 0, None, True), (3, 0, None, False), (4, 0, None, False)]


@pytest.mark.parametrize("wrong", [True, 7, "four", ["one", "short"], {999: None}])
def test_a_batch_handler_that_returns_no_outcomes_at_all_costs_no_attempt(
    conn: Connection, queue: Queue, wrong: Any
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    with pytest.raises(InvalidOutcome):
        Consumer(queue_name="orders", handle_batch=lambda messages: wrong).drain(conn)
    later = "SELECT count(*), sum(attempts), bool_and(visible_at > clock_timestamp()) FROM messages.message"
    assert conn.execute(later).fetchone() == (4, 0, True)


def test_a_handler_that_ends_the_process_costs_its_own_message_an_attempt(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def handle(message: Message) -> None:
        if message.body == 1:
            sys.exit(3)

    with pytest.raises(SystemExit):
        Consumer(queue_name="orders", handle=handle).drain(conn)
    assert conn.execute("SELECT message FROM messages.message_archive").fetchall() == [(0,)]
    left = conn.execute("SELECT message, attempts FROM messages.message ORDER BY message").fetchall()
    assert left == [(1, 1), (2, 0), (3, 0)]


def test_a_delay_of_another_type_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"delay is of type int\. Give a timedelta"):
        Retry(delay=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Success(details=1), "details is of type int"),  # type: ignore[arg-type]
        (lambda: Rejected(ValueError("x")), "reason is of type ValueError"),  # type: ignore[arg-type]
        (lambda: Rejected(None), "reason is None"),  # type: ignore[arg-type]
        (lambda: Failed("f", 5), "failure is of type int"),  # type: ignore[arg-type]
        (lambda: Failed(5), "details is of type int"),  # type: ignore[arg-type]
        (lambda: Retry(failure="x"), "failure is of type str"),  # type: ignore[arg-type]
    ],
)
def test_an_outcome_that_cannot_be_kept_is_an_error_of_its_own_message(
    conn: Connection, queue: Queue, make: Callable[[], Any], said: str
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    counts = Consumer(queue_name="orders", handle=lambda message: None if message.body else make()).drain(conn)
    assert counts == {"retried": 1, "success": 1}
    left = conn.execute("SELECT message, attempts, last_error FROM messages.message").fetchall()
    assert [(body, attempts) for body, attempts, _ in left] == [(0, 1)]
    assert said in left[0][2]
