"""One bad message takes no other along, however it ends its consumer: each neighbour succeeds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, Message, Retry, run, verbs
from airflow_provider_pgqueue.core.function import awaited
from tests.waiting import until_leases_expire

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

pytestmark = pytest.mark.long

BAD = 15
PROGRAM = """
import asyncio, os, signal, sys
from airflow_provider_pgqueue.core import Consumer, Worker

def handle(message):
    if message.body == {bad}:
        {end}

def handle_batch(messages):
    for message in messages:
        handle(message)

consumer = Consumer(queue_name="orders", {name}={name})
print(Worker(conninfo={dsn!r}, consumer=consumer).run(until_empty=True))
"""
ENDS = ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"]


def results(conn: Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT message::int, result::text FROM messages.message_archive").fetchall())


def ended(count: int, bad: str) -> dict[int, str]:
    return {body: bad if body == BAD else "success" for body in range(count)}


def left(conn: Connection) -> int:
    return conn.execute("SELECT FROM messages.message").rowcount


def end_leases(conn: Connection) -> None:
    """Let what a consumer has left behind end now: leases so short that a test waits for them end in a slow one too."""
    conn.execute(
        "UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE lock_expires_at > clock_timestamp()"
    )


@pytest.mark.parametrize("name", ["handle", "handle_batch"])
@pytest.mark.parametrize("end", ENDS)
def test_a_message_that_ends_its_process_dies_alone(
    dsn: str, conn: Connection, queue: Queue, end: str, name: str
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=4, backoff_first="0"), list(range(120))))
    program = PROGRAM.format(bad=BAD, end=end, name=name, dsn=dsn)
    deaths = 0
    while left(conn):
        deaths += not subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stdout
        end_leases(conn)
        run(conn, verbs.maintain())
    assert results(conn) == ended(120, "failed" if "sys" in end else "lock_expired")
    assert deaths == 4
    attempts = "SELECT attempts, count(*) FROM messages.message_archive GROUP BY 1"
    # The first attempt of a batch, the second of a tenth of it; alone by then, no neighbour has a fourth.
    numbers = dict(conn.execute(attempts).fetchall())
    assert numbers[4] == 1
    assert numbers.get(3, 0) < 10


@pytest.mark.parametrize("error", [ValueError, MemoryError])
def test_a_message_on_which_a_batch_raises_dies_alone(conn: Connection, queue: Queue, error: type[Exception]) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=3, backoff_first="0"), list(range(100))))
    seen: list[int] = []

    def handle(messages: list[Message]) -> None:
        seen.extend(message.body for message in messages)
        if any(message.body == BAD for message in messages):
            raise error

    counts = Consumer(queue_name="orders", handle_batch=handle).drain(conn)
    assert counts == {"success": 99, "retried": 2, "failed": 1}
    assert results(conn) == ended(100, "failed")
    # In the batch, and in a tenth of it; those of its own tenth once more.
    assert sorted(seen.count(body) for body in range(100)) == [*[2] * 90, *[3] * 9, 5]


@pytest.mark.parametrize("name", ["handle", "handle_batch"])
def test_a_message_that_hangs_dies_alone(conn: Connection, queue: Queue, name: str) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=3), list(range(20))))
    ended_ = threading.Event()

    def handle(message: Message) -> None:
        if message.body == BAD:
            ended_.wait(60)

    handlers: dict[str, Any] = {"handle": handle, "handle_batch": lambda messages: list(map(handle, messages))}
    consumer = Consumer(queue_name="orders", handler_timeout=2, **{name: handlers[name]})
    for attempt in range(3):
        expected = [{"success": 19, "timed_out": 1}, {"timed_out": 1}, {"lock_expired": 1}][attempt]
        assert consumer.drain(conn) == expected
        end_leases(conn)
    ended_.set()
    assert results(conn) == ended(20, "lock_expired")


def abandon(conn: Connection, number: int) -> None:
    """Let a lease of so many messages end."""
    assert len(run(conn, verbs.lease("orders", max_messages=number, lease_for=timedelta(milliseconds=1)))) == number
    until_leases_expire(conn)
    run(conn, verbs.maintain())


def batches(conn: Connection) -> list[list[int]]:
    """Handle what is ready, and return the bodies of each call."""
    found: list[list[int]] = []

    def handle(messages: list[Message]) -> None:
        found.append([message.body for message in messages])

    Consumer(queue_name="orders", handle_batch=handle).drain(conn)
    return found


def sizes(conn: Connection) -> list[int]:
    return list(map(len, batches(conn)))


def test_what_comes_again_without_a_result_is_handled_in_tenths_and_in_order(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(150))))
    abandon(conn, 25)
    found = batches(conn)
    assert list(map(len, found)) == [10, 10, 10, 10, 100, 10]
    assert [body for batch in found for body in batch] == list(range(150))
    rows = conn.execute("SELECT attempts, count(*) FROM messages.message_archive GROUP BY 1 ORDER BY 1").fetchall()
    assert rows == [(1, 125), (2, 25)]


def test_what_is_abandoned_at_its_last_attempt_but_one_is_handled_alone(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=2), list(range(3))))
    abandon(conn, 2)
    assert sizes(conn) == [1, 1, 1]


def test_what_was_ended_by_hand_or_for_a_holder_that_is_gone_comes_in_tenths(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(30))))
    run(conn, verbs.lease("orders", max_messages=30, locked_by="gone/1"))
    run(conn, verbs.release_messages("orders", holder="gone"))
    assert sizes(conn) == [10, 10, 10]


def test_what_comes_again_after_an_outcome_is_handled_with_all_others(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", backoff_first="0"), list(range(40))))
    found: list[int] = []

    def handle(messages: list[Message]) -> Any:
        found.append(len(messages))
        return [Retry(timedelta(0), "later") if message.attempts == 1 else None for message in messages]

    assert Consumer(queue_name="orders", handle_batch=handle).drain(conn) == {"retried": 40, "success": 40}
    assert found == [40, 40]


def cancelled(message: Message) -> None:
    raise asyncio.CancelledError


def generator_exit(message: Message) -> None:
    raise GeneratorExit


def group(message: Message) -> None:
    raise BaseExceptionGroup("tasks", [asyncio.CancelledError(), KeyError("x")])


@awaited
async def task_cancelled(message: Message) -> None:
    task = asyncio.ensure_future(asyncio.sleep(9))
    task.cancel()
    await task


@awaited
async def own_task_cancelled(message: Message) -> None:
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    await asyncio.sleep(1)


@pytest.mark.parametrize("name", ["handle", "handle_batch"])
@pytest.mark.parametrize("raises", [cancelled, generator_exit, group, task_cancelled, own_task_cancelled])
def test_an_error_that_is_no_exception_is_a_failure_of_its_message(
    conn: Connection, queue: Queue, raises: Callable[[Message], None], name: str
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=2, backoff_first="0"), list(range(BAD + 5))))

    def handle(message: Message) -> None:
        if message.body == BAD:
            raises(message)

    handlers: dict[str, Any] = {"handle": handle, "handle_batch": lambda messages: list(map(handle, messages))}
    counts = Consumer(queue_name="orders", **{name: handlers[name]}).drain(conn)
    assert counts == {"success": BAD + 4, "retried": 1, "failed": 1}
    assert results(conn) == ended(BAD + 5, "failed")


def test_a_group_of_errors_with_the_wish_to_end_ends_the_consumer(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> None:
        raise BaseExceptionGroup("tasks", [asyncio.CancelledError(), SystemExit(3)])

    with pytest.raises(BaseExceptionGroup):
        Consumer(queue_name="orders", handle=handle).drain(conn)
    assert conn.execute("SELECT attempts FROM messages.message ORDER BY id").fetchall() == [(1,), (0,)]
