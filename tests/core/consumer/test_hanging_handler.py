"""A handler that hangs loses its message after its time, and costs its neighbours nothing."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    Consumer,
    HandlerBroken,
    InvalidArgument,
    Lease,
    Message,
    QueueNotFound,
    Rejected,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.consumer.loop import Loop
from tests.waiting import until_leases_expire, until_past

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
LIMIT = timedelta(milliseconds=300)
LEASE = timedelta(seconds=1)


@pytest.fixture
def hangs() -> Iterator[Callable[[], None]]:
    """Hang until the test ends."""
    ended = threading.Event()
    yield lambda: [ended.wait(60), None][1]
    ended.set()


def results(conn: Connection) -> dict[Any, Any]:
    rows = conn.execute("SELECT message::int, result::text FROM messages.message_archive").fetchall()
    return dict(rows)


def consumer(**options: Any) -> Consumer:
    return Consumer(queue_name="orders", **({"lease_for": LEASE, "handler_timeout": LIMIT} | options))


def test_the_neighbours_keep_their_outcomes_and_the_message_comes_back(
    conn: Connection, queue: Queue, hangs: Callable[[], None]
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=2), list(range(5))))

    def handle(message: Message) -> Rejected | None:
        if message.body == 2:
            hangs()
        return Rejected("odd") if message.body == 3 else None

    assert consumer(handle=handle).drain(conn) == {"success": 3, "rejected": 1, "timed_out": 1}
    until_leases_expire(conn)
    assert consumer(handle=handle).drain(conn) == {"lock_expired": 1}
    ((details,),) = conn.execute("SELECT details FROM messages.message_archive WHERE message = '2'").fetchall()
    assert details == "the call took longer than 0:00:00.300000"
    assert results(conn) == {0: "success", 1: "success", 2: "lock_expired", 3: "rejected", 4: "success"}


def test_a_call_that_hangs_in_a_transaction_on_the_connection_of_its_consumer_commits_nothing(
    conn: Connection, connect: Callable[..., Connection], queue: Queue, hangs: Callable[[], None]
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    conn.execute("CREATE TABLE effect (number integer)")

    def handle(message: Message) -> None:
        own.execute("BEGIN")
        own.execute("INSERT INTO effect VALUES (1)")
        hangs()

    with pytest.raises(ConnectionFailed):
        consumer(handle=handle).drain(own)
    assert own.closed
    until_leases_expire(conn)
    assert consumer(handle=lambda message: None).drain(conn) == {"success": 2}
    assert conn.execute("SELECT FROM effect").rowcount == 0


def test_a_batch_that_hangs_on_one_message_is_handled_in_tenths(
    conn: Connection, queue: Queue, hangs: Callable[[], None]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(100))))
    seen: list[int] = []

    def handle(messages: list[Message]) -> None:
        seen.append(len(messages))
        if any(message.body == 42 for message in messages):
            hangs()

    assert consumer(handle_batch=handle).drain(conn) == {"success": 99, "timed_out": 1}
    assert seen == [100, 10, 10, 10, 10, 10, *[1] * 10, 10, 10, 10, 10, 10]


def test_the_policy_of_the_queue_is_the_default(conn: Connection, queue: Queue, hangs: Callable[[], None]) -> None:
    run(conn, verbs.publish(queue("orders", handler_timeout="300 milliseconds", lease_for="2 seconds"), 1))
    assert consumer(handle=lambda message: hangs(), lease_for=None, handler_timeout=None).drain(conn) == {
        "timed_out": 1
    }
    run(conn, verbs.alter_queue("orders", handler_timeout=timedelta(0)))
    policy = run(conn, verbs.lease_policy("orders"))
    assert (policy.lease_for, policy.handler_timeout) == (timedelta(seconds=2), None)
    with pytest.raises(QueueNotFound):
        run(conn, verbs.lease_policy("nope"))


def test_a_process_full_of_hanging_calls_stops(conn: Connection, queue: Queue, hangs: Callable[[], None]) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(15))))
    broken = consumer(handle=lambda message: hangs(), handler_timeout=LIMIT / 10)
    with Loop(broken, conn) as loop:
        assert loop.drain(max_messages=7) == {"timed_out": 7}
        with pytest.raises(HandlerBroken, match="calls of the handler of queue 'orders' hang on 10 messages"):
            loop.drain(max_messages=7)
    assert conn.execute("SELECT FROM messages.message WHERE attempts = 0 AND lock_token IS NULL").rowcount == 5


def test_a_handler_with_a_limit_raises_and_returns_as_without(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    threads = set()

    def handle(message: Message) -> Rejected | None:
        threads.add(threading.get_ident())
        if message.body == 0:
            raise TimeoutError("of the handler itself")
        return Rejected(variable.get()) if message.body == 1 else None

    assert consumer(handle=handle).drain(conn) == {"failed": 1, "rejected": 1, "success": 2}
    assert len(threads) == 1
    rows = conn.execute("SELECT details FROM messages.message_archive WHERE details IS NOT NULL ORDER BY id").fetchall()
    assert rows == [("TimeoutError: of the handler itself",), ("set",)]


def test_a_handler_with_a_limit_may_end_the_process(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        consumer(handle=handle).drain(conn)
    assert conn.execute("SELECT attempts FROM messages.message ORDER BY id").fetchall() == [(1,), (0,)]


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="handler_timeout"):
        consumer(handle=lambda message: None, handler_timeout=timedelta(0))


def leased_for(conn: Connection) -> Any:
    row = conn.execute("SELECT round(extract(epoch FROM lock_expires_at - leased_at)) FROM messages.message").fetchone()
    return row and row[0]


def test_a_consumer_leases_and_renews_as_the_queue_says(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    other = connect()
    run(conn, verbs.publish(queue("orders", lease_for="2 seconds"), 1))

    def handle(message: Message) -> None:
        assert leased_for(other) == 2
        until_past(other, message.lock_expires_at)
        assert run(other, verbs.lease("orders")) == []

    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"success": 1}


def test_a_lease_alone_is_renewed_as_the_queue_says(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    other = connect()
    run(conn, verbs.publish(queue("orders", lease_for="2 seconds"), 1))
    with Lease(conn, run(conn, verbs.lease("orders"))) as lease:
        until_past(other, lease[0].lock_expires_at)
        assert run(other, verbs.lease("orders")) == []
