"""What is kept about a finished message, and the inbox."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    InvalidArgument,
    Message,
    Outcome,
    Rejected,
    Retry,
    Success,
    connect,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import InUse
from airflow_provider_pgqueue.core.outcome import describe
from tests.waiting import until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def archived(conn: Connection, fingerprint: str | None = None) -> list[Any]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        given = "SELECT * FROM messages.archive_overview WHERE %(one)s::text IS NULL OR fingerprint = %(one)s"
        return cursor.execute(given, {"one": fingerprint}).fetchall()


def test_what_a_handler_returns_is_kept_with_the_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2], references=["one", "two"]))
    consumer = Consumer(queue_name="orders", handle=lambda message: Success(output={"twice": message.body * 2}))
    assert consumer.drain(conn) == {"success": 2}
    (one,) = [row for row in archived(conn) if row.reference == "one"]
    assert one.output == {"twice": 2}
    assert one.fingerprint is None


def test_a_failure_is_kept_with_its_class_its_text_and_its_traceback(conn: Connection, queue: Queue) -> None:
    def handle(message: Message) -> Outcome | None:
        raise KeyError(message.body)

    run(conn, verbs.publish(queue("orders", max_attempts=1), "no such key"))
    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"failed": 1}
    (dead,) = run(conn, verbs.lease_dead("orders"))
    assert (dead.failure["error"], dead.failure["message"]) == ("KeyError", "'no such key'")
    assert "in handle" in dead.failure["traceback"]
    (kept,) = archived(conn)
    assert kept.failure == dead.failure
    assert kept.details == "KeyError: 'no such key'"


def test_a_traceback_is_cut_at_its_beginning_and_odd_characters_do_no_harm(conn: Connection, queue: Queue) -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise ValueError("nul \0 and lone \ud800" + "x" * 9000)
        deep(level - 1)

    try:
        deep(300)
    except ValueError as error:
        failure = describe(error)
    assert len(failure["message"]) == 2000
    assert len(failure["traceback"]) == 8000
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = run(conn, verbs.lease("orders"))
    outcomes = {message.id: Failed("odd", failure)}
    assert run(conn, verbs.archive(message.lock_token, [message.id], outcomes=outcomes)) == [message.id]


def test_messages_that_died_of_one_cause_share_a_fingerprint(conn: Connection, queue: Queue) -> None:
    reasons = [
        "order 17 of 'shop a' not found",
        "order 4711 of 'another' not found",
        "order 6f1c2b3a-0d4e-4f5a-8b9c-001122334455 of 'x' not found",
        "connection refused",
    ]
    run(conn, verbs.publish_batch(queue("orders"), reasons))
    messages = run(conn, verbs.lease("orders", max_messages=10))
    outcomes = {message.id: Failed(message.body) for message in messages}
    run(conn, verbs.archive(messages[0].lock_token, list(outcomes), outcomes=outcomes))
    causes = run(conn, verbs.dead_causes("orders"))
    assert [cause.waiting for cause in causes] == [3, 1]
    assert causes[1].example == "connection refused"
    assert len(archived(conn, fingerprint=causes[0].fingerprint)) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"output": "x" * 70000}, "an output or failure has 7000[0-9] bytes"),
        ({"failure": ["no object"]}, "a failure is of type array"),
    ],
)
def test_an_output_or_failure_that_cannot_be_kept_is_refused_and_the_lease_goes_on(
    conn: Connection, queue: Queue, arguments: dict[str, Any], says: str
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = run(conn, verbs.lease("orders"))
    with pytest.raises(InvalidArgument, match=says):
        run(conn, verbs.archive(message.lock_token, [message.id], **arguments))
    assert run(conn, verbs.archive(message.lock_token, [message.id])) == [message.id]


def test_an_effect_happens_once_however_often_its_message_is_delivered(connect: Connect, queue: Queue) -> None:
    conn, mine = connect(), connect(autocommit=False)
    conn.execute("CREATE TABLE effect (id bigint)")
    run(conn, verbs.publish(queue("orders"), 1))
    for turn in ("commit", "deliver again"):
        (message,) = run(conn, verbs.lease("orders"))
        if run(mine, verbs.once("billing", message.id)):
            mine.execute("INSERT INTO effect VALUES (%s)", [message.id])
        mine.commit()
        if turn == "commit":
            run(conn, verbs.release(message.lock_token, [message.id]))
    assert conn.execute("SELECT count(*) FROM effect").fetchone() == (1,)
    assert run(conn, verbs.once("another consumer", message.id))


def test_the_second_of_two_at_once_waits_and_has_no_effect(connect: Connect) -> None:
    first, second = connect(autocommit=False), connect()
    assert run(first, verbs.once("billing", 1))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, second, verbs.once("billing", 1))
        first.commit()
        assert other.result(timeout=20) is False


def test_two_that_wait_for_each_others_effects_are_told_to_repeat(conn: Connection, connect: Connect) -> None:
    one, two = (connect(autocommit=False, options="-c deadlock_timeout=50ms") for _ in range(2))
    assert run(one, verbs.once("billing", 1))
    assert run(two, verbs.once("billing", 2))

    def wait(session: Connection, message: int) -> bool:
        try:
            return run(session, verbs.once("billing", message))
        finally:
            session.rollback()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wait, one, 2)
        until_waiting(conn)
        errors = [each.exception() for each in (first, pool.submit(wait, two, 1))]
    (error,) = (error for error in errors if error)
    assert isinstance(error, InUse)
    assert "of consumer 'billing' is held by a transaction that waits for this one" in str(error)


def test_a_rolled_back_effect_may_happen_again(connect: Connect) -> None:
    first = connect(autocommit=False)
    assert run(first, verbs.once("billing", 1))
    first.rollback()
    assert run(first, verbs.once("billing", 1))


def test_the_inbox_forgets_after_thirty_days(conn: Connection) -> None:
    assert run(conn, verbs.once("billing", 1))
    assert run(conn, verbs.once("billing", 2))
    conn.execute("UPDATE messages.inbox SET handled_at = handled_at - interval '31 days' WHERE message_id = 1")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT message_id FROM messages.inbox").fetchall() == [(2,)]


def last_error(conn: Connection) -> Any:
    (row,) = conn.execute("SELECT last_error FROM messages.message_overview").fetchall()
    return row[0]


def test_the_last_error_of_a_message_that_is_retried_stays_with_it(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), "SECRET"))
    (message,) = run(conn, verbs.lease("orders"))
    assert last_error(conn) is None
    failure = {"error": "TimeoutError", "message": "the shop is slow " + "x" * 1000, "traceback": "…"}
    run(conn, verbs.release(message.lock_token, [message.id], details="in the shop", failure=failure))
    assert last_error(conn) == ("TimeoutError: the shop is slow " + "x" * 1000)[:500]
    (message,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.release(message.lock_token, [message.id], count_attempt=False))
    assert last_error(conn).startswith("TimeoutError: ")  # a message that was not tried keeps it
    (message,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.release(message.lock_token, [message.id], details="no stock"))
    assert last_error(conn) == "no stock"


def raising(_message: Message) -> None:
    raise LookupError("no such order")


@pytest.mark.parametrize(
    ("handle", "says"),
    [(raising, "LookupError: no such order"), (lambda _message: Retry(details="no stock"), "no stock")],
    ids=["raises", "retries"],
)
def test_a_consumer_leaves_the_last_error(
    conn: Connection, queue: Queue, handle: Callable[[Message], Any], says: str
) -> None:
    run(conn, verbs.publish(queue("orders", backoff_first="1 hour"), 1))
    Consumer(queue_name="orders", handle=handle).drain(conn)
    assert last_error(conn) == says


@pytest.mark.parametrize(("form", "opened"), [("one", connect), ("batch", partial(psycopg.connect, autocommit=True))])
def test_json_that_python_cannot_read_is_rejected_alone(
    dsn: str, conn: Connection, queue: Queue, form: str, opened: Connect
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "first"))
    for body in ("'1' || repeat('0', 6000)", "'1e60000'", "repeat('[', 3000) || repeat(']', 3000)"):
        for call in ("publish('orders', {})", "publish('orders', '2', headers => jsonb_build_object('deep', {}))"):
            conn.execute(f"SELECT messages.{call.format(f'({body})::jsonb')}".encode())
    run(conn, verbs.publish("orders", "last"))
    seen: list[Any] = []
    if form == "one":
        consumer = Consumer(queue_name="orders", handle=lambda message: seen.append(message.body))
    else:
        consumer = Consumer(
            queue_name="orders", handle_batch=lambda messages: seen.extend(message.body for message in messages)
        )
    with opened(dsn) as own:
        assert consumer.drain(own) == {"success": 2, "rejected": 6}
    assert seen == ["first", "last"]
    ended = conn.execute("SELECT result, attempts, details FROM messages.message_archive ORDER BY id").fetchall()
    assert [row[:2] for row in ended] == [("success", 1), *[("rejected", 1)] * 6, ("success", 1)]
    assert all("Python cannot read its JSON" in row[2] for row in ended[1:-1])


@pytest.mark.parametrize(
    ("rules", "counts"),
    [
        ({LookupError: Rejected}, {"rejected": 1}),
        ({LookupError: Failed}, {"failed": 1}),
        ({LookupError: Retry(timedelta(hours=1))}, {"retried": 1}),
        ({LookupError: Failed, KeyError: Rejected}, {"rejected": 1}),
        ({ValueError: Failed}, {"retried": 1}),
        ({}, {"retried": 1}),
    ],
)
def test_a_rule_for_the_nearest_class_says_what_becomes_of_a_message(
    conn: Connection, queue: Queue, rules: Any, counts: dict[str, int]
) -> None:
    def handle(message: Message) -> Outcome | None:
        raise KeyError(message.body)

    run(conn, verbs.publish(queue("orders"), "no such key"))
    consumer = Consumer(queue_name="orders", handle=handle, on_error=rules)
    assert consumer.drain(conn, max_messages=1) == counts
    for kept in archived(conn):
        assert kept.details == "KeyError: 'no such key'"
        assert (kept.result == "failed") == (kept.failure is not None)


def test_a_rule_for_what_ends_the_process_may_spare_the_attempt(conn: Connection, queue: Queue) -> None:
    def handle(message: Message) -> Outcome | None:
        raise SystemExit(3)

    def attempts() -> list[int]:
        return [number for (number,) in conn.execute("SELECT attempts FROM messages.message ORDER BY id")]

    run(conn, verbs.publish_batch(queue("orders", backoff_first="0"), [1, 2]))
    for rules, counted in (({}, [1, 0]), ({SystemExit: Retry(timedelta(0), count_attempt=False)}, [1, 0])):
        with pytest.raises(SystemExit):
            Consumer(queue_name="orders", handle=handle, on_error=rules).drain(conn)
        assert attempts() == counted


@pytest.mark.parametrize("rules", [{"KeyError": Rejected}, {KeyError: Success}, {KeyError: "failed"}, {int: Failed}, 3])
def test_rules_that_are_none_are_refused(rules: Any) -> None:
    with pytest.raises(InvalidArgument, match="on_error"):
        Consumer(queue_name="orders", handle=print, on_error=rules)
