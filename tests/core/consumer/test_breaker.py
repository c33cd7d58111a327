"""A broken handler stops its consumer and costs few attempts; bad messages keep no others from their end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    HandlerBroken,
    InvalidArgument,
    Message,
    Retry,
    Success,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.loop import Loop

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

pytestmark = pytest.mark.long


def raises(message: Message) -> None:
    raise ValueError(f"secret {message.body}")


def raises_for_all(messages: list[Message]) -> None:
    raise ValueError(f"secret {messages[0].body}")


def unstorable(message: Message) -> Success:
    return Success(output=float("nan"))


def attempts(conn: Connection) -> dict[int, int]:
    """How many unfinished messages have how many attempts."""
    return dict(conn.execute("SELECT attempts, count(*) FROM messages.message GROUP BY 1").fetchall())


@pytest.mark.parametrize("number", [100, 1500])
def test_a_handler_that_always_raises_costs_a_hundred_attempts(conn: Connection, queue: Queue, number: int) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(number))))
    with pytest.raises(
        HandlerBroken, match=r"'orders' failed on 100 messages in a row, the last with ValueError \("
    ) as broken:
        Consumer(queue_name="orders", handle=raises, batch_size=1000).drain(conn)
    assert "secret" not in str(broken.value)
    assert "raises" in str(broken.value)
    assert attempts(conn) == {1: 100} | ({0: number - 100} if number > 100 else {})
    assert conn.execute("SELECT FROM messages.message WHERE lock_expires_at IS NOT NULL").rowcount == 0


@pytest.mark.parametrize(("bad", "stops"), [(50, 0), (250, 2)])
def test_bad_messages_at_the_head_of_a_queue_end_and_let_all_others_end(
    conn: Connection, queue: Queue, bad: int, stops: int
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=3, backoff_first="0"), list(range(2000))))

    def handle(message: Message) -> None:
        if message.body < bad:
            raises(message)

    for _ in range(stops):
        with pytest.raises(HandlerBroken):
            Consumer(queue_name="orders", handle=handle).drain(conn)
    Consumer(queue_name="orders", handle=handle).drain(conn)
    ends = conn.execute("SELECT result, count(*) FROM messages.message_archive GROUP BY 1").fetchall()
    assert dict(ends) == {"success": 2000 - bad, "failed": bad}


def test_what_failed_before_does_not_speak_against_the_handler() -> None:
    breaker, failed = Breaker("orders", 3), Retry(failure={"error": "ValueError", "message": "no"})
    for id_ in range(100):
        breaker.record(id_, failed, attempts=2)
    breaker.record(100, failed, attempts=1)
    breaker.record(101, failed, attempts=1)
    with pytest.raises(HandlerBroken, match="on 3 messages"):
        breaker.record(102, failed, attempts=1)


def test_a_failure_that_costs_no_attempt_stops_nothing(conn: Connection, queue: Queue) -> None:
    """Or one message would stop each consumer, as its next attempt is the first again."""
    run(conn, verbs.publish_batch(queue("orders"), list(range(3))))
    calls = 0

    def handle(message: Message) -> None:
        nonlocal calls
        calls += 1
        if calls < 150:
            raises(message)

    again = {ValueError: Retry(timedelta(0), count_attempt=False)}
    assert Consumer(queue_name="orders", handle=handle, on_error=again).drain(conn) == {"retried": 149, "success": 3}


def test_small_batches_count_together(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(100))))
    with pytest.raises(HandlerBroken):
        Consumer(queue_name="orders", handle=raises, batch_size=7, give_up_after=20).drain(conn)
    assert attempts(conn) == {0: 80, 1: 20}


def test_a_function_of_batches_costs_as_few_attempts(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(1000))))
    with pytest.raises(HandlerBroken, match="on 100 messages"):
        Consumer(queue_name="orders", handle_batch=raises_for_all, batch_size=1000).drain(conn)
    assert attempts(conn) == {0: 900, 1: 100}


@pytest.mark.parametrize(("number", "attempts"), [(1, 30), (99, 12)])
def test_a_few_messages_stop_nothing(conn: Connection, queue: Queue, number: int, attempts: int) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=attempts, backoff_first="0"), list(range(number))))
    consumer = Consumer(queue_name="orders", handle=raises)
    assert consumer.drain(conn) == {"retried": number * (attempts - 1), "failed": number}


def test_a_batch_with_one_bad_message_stops_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(1000))))

    def handle(messages: list[Message]) -> None:
        if any(message.body % 400 == 0 for message in messages):
            raise ValueError("bad")

    assert Consumer(queue_name="orders", handle_batch=handle).drain(conn) == {"success": 997, "failed": 3}


def test_a_handler_that_breaks_later_stops_after_a_hundred(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(1000))))

    def handle(message: Message) -> None:
        if message.body >= 600:
            raise ConnectionError(f"no connection {message.id}")

    with pytest.raises(HandlerBroken, match="on 100 messages"):
        Consumer(queue_name="orders", handle=handle).drain(conn)
    assert attempts(conn) == {0: 300, 1: 100}


def test_a_success_in_between_begins_anew(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(1000))))

    def handle(message: Message) -> None:
        if message.body % 100:
            raises(message)

    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"success": 10, "failed": 990}


def test_what_a_handler_wishes_is_no_failure(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(300))))
    consumer = Consumer(queue_name="orders", handle=lambda message: Retry(details="busy", count_attempt=True))
    assert consumer.drain(conn) == {"failed": 300}


def test_outcomes_that_cannot_be_stored_stop_within_a_hundred(
    conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(200))))
    with pytest.raises(HandlerBroken, match="on 100 messages in a row, the last with outcomes that cannot be stored"):
        Consumer(queue_name="orders", handle=unstorable).drain(conn)
    assert attempts(conn) == {0: 100}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("size", [1, 7])
def test_an_outcome_that_can_be_stored_begins_anew(conn: Connection, queue: Queue, size: int) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(60))))

    def handle(message: Message) -> Success | None:
        return unstorable(message) if message.body % 10 else None

    consumer = Consumer(queue_name="orders", handle=handle, batch_size=size, give_up_after=20)
    assert consumer.drain(conn) == {"success": 6, "failed": 54}


def test_failures_between_outcomes_that_cannot_be_stored_change_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(100))))

    def handle(message: Message) -> Success:
        if message.body % 2:
            raises(message)
        return unstorable(message)

    with pytest.raises(HandlerBroken, match="cannot be stored"):
        Consumer(queue_name="orders", handle=handle, batch_size=10, give_up_after=20).drain(conn)


def test_each_message_counts_once_as_failed(conn: Connection, queue: Queue) -> None:
    """A task of which all messages failed fails: `failed` equals `handled` only then."""
    outcomes = [None, Failed("no"), Failed("no", output=float("nan")), Success(output=float("nan")), Retry()]
    run(conn, verbs.publish_batch(queue("orders"), list(range(len(outcomes)))))
    consumer = Consumer(queue_name="orders", handle=lambda message: outcomes[message.body])
    breaker = Breaker("orders", None)
    with Loop(consumer, conn, breaker=breaker) as loop:
        loop.drain()
    assert (breaker.handled, breaker.failed) == (5, 3)


def test_it_can_be_switched_off_and_set(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(300))))
    with pytest.raises(HandlerBroken, match="on 5 messages"):
        Consumer(queue_name="orders", handle=raises, give_up_after=5).drain(conn)
    consumer = Consumer(queue_name="orders", handle=raises, give_up_after=0)
    while attempts(conn):
        consumer.drain(conn)
    assert conn.execute("SELECT FROM messages.message_archive WHERE result = 'failed'").rowcount == 300
    with pytest.raises(InvalidArgument, match="give_up_after"):
        Consumer(queue_name="orders", handle=raises, give_up_after=-1)


def test_a_failure_is_logged_once_a_minute(conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(600))))
    caplog.set_level(logging.WARNING)

    def handle(message: Message) -> None:
        if message.body % 3 == 0:
            raises(message)
        if message.body % 3 == 1:
            raise KeyError(message.body)

    Consumer(queue_name="orders", handle=handle).drain(conn)
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


def test_a_message_that_python_cannot_read_does_not_speak_for_the_handler(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute("SELECT messages.publish('orders', %s::jsonb)", ["9" * 5000])
    run(conn, verbs.publish_batch("orders", list(range(30))))
    with pytest.raises(HandlerBroken, match="on 20 messages"):
        Consumer(queue_name="orders", handle=raises, give_up_after=20).drain(conn)
    assert attempts(conn) == {0: 10, 1: 20}
