"""A queue that stops itself: what breaks it, what is let through meanwhile, and what opens it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, Message, Worker, run, verbs
from tests.core.consumer.test_worker import working
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

HOUR = timedelta(hours=1)
DOWN = {"error": "ConnectionError", "message": "order 17: the service is down"}


@pytest.fixture
def orders(conn: Connection, queue: Queue) -> str:
    """A queue that breaks after three failures, with twenty messages."""
    queue("orders", break_after=3, backoff_first=HOUR, backoff_max=4 * HOUR)
    run(conn, verbs.publish_batch("orders", list(range(20))))
    return "orders"


def lease(conn: Connection, max_messages: int = 1) -> list[Message]:
    return run(conn, verbs.lease("orders", max_messages=max_messages))


def fail(conn: Connection, failure: dict[str, str] = DOWN, *, dead: bool = False) -> None:
    (message,) = lease(conn)
    if dead:
        run(conn, verbs.archive(message.lock_token, [message.id], result="failed", failure=failure))
    else:
        run(conn, verbs.release(message.lock_token, [message.id], back_off=True, failure=failure))


def succeed(conn: Connection, messages: list[Message]) -> None:
    run(conn, verbs.archive(messages[0].lock_token, [message.id for message in messages]))


def is_broken(conn: Connection) -> bool:
    (status,) = run(conn, verbs.status("orders"))
    return status.broken_since is not None


def break_it(conn: Connection) -> None:
    for _ in range(3):
        fail(conn)
    assert is_broken(conn)


def pass_time(conn: Connection, by: timedelta = 5 * HOUR) -> None:
    """Let the pause until the next message be over."""
    conn.execute(
        "SELECT messages.store_time(probe_due, messages.stored_time(probe_due) - %(by)s) FROM messages.queue",
        {"by": by},
    )
    conn.execute("UPDATE messages.queue SET broken_since = broken_since - %s", [by])


def test_so_many_failures_with_one_cause_break_the_queue_and_nothing_is_leased(
    conn: Connection, connect: Connect, orders: str
) -> None:
    listener = connect()
    listener.execute("LISTEN queue_broken")
    fail(conn)
    fail(conn, dead=True)
    assert not is_broken(conn)
    fail(conn, DOWN | {"message": "order 18: the service is down"})
    assert is_broken(conn)
    assert [heard.payload for heard in listener.notifies(timeout=5, stop_after=1)] == ["orders"]
    assert lease(conn, 10) == []
    assert run(conn, verbs.consume("orders", max_messages=10)) == []


@pytest.mark.parametrize("between", ["success", "rejected", "another cause"])
def test_what_ends_otherwise_in_between_keeps_it_whole(conn: Connection, orders: str, between: str) -> None:
    fail(conn)
    fail(conn)
    if between == "another cause":
        fail(conn, {"error": "ValueError", "message": "no city"})
    else:
        (message,) = lease(conn)
        run(conn, verbs.archive(message.lock_token, [message.id], result=between))
    fail(conn)
    fail(conn)
    assert not is_broken(conn)
    fail(conn)
    assert is_broken(conn)


def test_a_queue_breaks_only_if_its_policy_says_so(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(20))))
    for _ in range(10):
        fail(conn)
    assert not is_broken(conn)
    run(conn, verbs.alter_queue("orders", break_after=2))
    assert not is_broken(conn)
    fail(conn)
    assert is_broken(conn)
    run(conn, verbs.alter_queue("orders", break_after=0))
    assert not is_broken(conn)
    assert len(lease(conn, 5)) == 5


def test_one_message_is_let_through_after_each_pause_and_the_pauses_double(conn: Connection, orders: str) -> None:
    break_it(conn)
    pauses = []
    for _ in range(5):
        (found,) = run(conn, verbs.ready_queues(["orders"]))
        assert found.next_in is not None
        pauses.append(found.next_in)
        pass_time(conn, found.next_in)
        (probe,) = lease(conn, 10)
        assert lease(conn, 10) == []
        run(conn, verbs.release(probe.lock_token, [probe.id], back_off=True, failure=DOWN))
    assert [round(pause / HOUR) for pause in pauses] == [1, 1, 2, 4, 4]
    assert is_broken(conn)


@pytest.mark.parametrize("how", ["archive", "consume"])
def test_a_success_opens_it_and_the_next_lease_rings(conn: Connection, connect: Connect, orders: str, how: str) -> None:
    break_it(conn)
    pass_time(conn)
    if how == "archive":
        succeed(conn, lease(conn))
    else:
        assert len(run(conn, verbs.consume("orders", max_messages=5))) == 1
    assert not is_broken(conn)
    (found,) = run(conn, verbs.ready_queues(["orders"]))
    assert found.ready > 1
    listener = connect()
    listener.execute("LISTEN new_message")
    assert len(lease(conn, 5)) == 5
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    fail(conn)
    fail(conn)
    assert not is_broken(conn), "what failed before the success does not count"


def test_none_follows_a_message_that_is_held_for_longer_than_the_pause_and_its_success_opens_it(
    conn: Connection, orders: str
) -> None:
    break_it(conn)
    pass_time(conn)
    held = lease(conn, 10)
    assert len(held) == 1
    pass_time(conn)
    assert lease(conn, 10) == []
    (found,) = run(conn, verbs.ready_queues(["orders"]))
    assert found.ready == 0
    assert found.next_in is not None
    assert found.next_in >= timedelta(seconds=0.9)
    succeed(conn, held)
    assert not is_broken(conn)


def test_successes_of_a_batch_that_are_archived_before_its_failures_keep_it_whole(
    conn: Connection, orders: str
) -> None:
    messages = lease(conn, 10)
    succeed(conn, messages[:7])
    for message in messages[7:]:
        run(conn, verbs.release(message.lock_token, [message.id], back_off=True, failure=DOWN))
    assert not is_broken(conn)
    fail(conn)
    fail(conn)
    fail(conn)
    assert is_broken(conn)


def test_its_rate_is_kept_while_it_is_broken_and_after(conn: Connection, queue: Queue) -> None:
    queue("orders", break_after=3, rate_limit=4, rate_period=HOUR, rate_burst=4, backoff_first=timedelta(0))
    run(conn, verbs.publish_batch("orders", list(range(20))))
    break_it(conn)
    pass_time(conn)
    fail(conn)
    pass_time(conn)
    assert lease(conn, 10) == [], "four were leased"
    run(conn, verbs.resume_queue("orders"))
    assert lease(conn, 10) == []


def test_a_consumer_in_a_long_transaction_that_opens_it_keeps_nobody_from_changing_it(
    conn: Connection, connect: Connect, orders: str
) -> None:
    break_it(conn)
    pass_time(conn)
    succeed(conn, lease(conn))
    other = connect(autocommit=False)
    assert len(run(other, verbs.consume("orders", max_messages=5))) == 5
    run(conn, verbs.pause_queue("orders"))
    run(conn, verbs.resume_queue("orders"))
    other.commit()


def test_the_upkeep_opens_it_and_rings(conn: Connection, connect: Connect, orders: str) -> None:
    break_it(conn)
    pass_time(conn)
    succeed(conn, lease(conn))
    listener = connect()
    listener.execute("LISTEN new_message")
    run(conn, verbs.upkeep())
    assert conn.execute("SELECT broken_since FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (None,)
    assert list(listener.notifies(timeout=5, stop_after=1))


def test_a_new_queue_of_the_same_name_inherits_no_failures(conn: Connection, queue: Queue, orders: str) -> None:
    fail(conn)
    fail(conn)
    run(conn, verbs.drop_queue("orders", force=True))
    run(conn, verbs.create_queue("orders", break_after=3))
    run(conn, verbs.publish("orders", 1))
    fail(conn)
    assert not is_broken(conn)


@pytest.mark.parametrize("result", ["rejected", "failed", "rolled back"])
def test_nothing_but_a_success_opens_it(conn: Connection, connect: Connect, orders: str, result: str) -> None:
    break_it(conn)
    pass_time(conn)
    if result == "rolled back":
        other = connect(autocommit=False)
        assert len(run(other, verbs.consume("orders"))) == 1
        other.rollback()
    else:
        (probe,) = lease(conn)
        run(conn, verbs.archive(probe.lock_token, [probe.id], result=result))
    assert is_broken(conn)
    assert lease(conn) == [], "the pause is used up"


def test_a_queue_that_breaks_again_forgets_the_message_that_opened_it(conn: Connection, orders: str) -> None:
    break_it(conn)
    pass_time(conn)
    succeed(conn, lease(conn))
    break_it(conn)
    assert lease(conn) == []


def test_what_was_leased_before_it_broke_is_finished_and_opens_nothing(conn: Connection, orders: str) -> None:
    held = lease(conn, 2)
    break_it(conn)
    succeed(conn, held)
    assert is_broken(conn)


def test_resume_queue_opens_it_by_hand(conn: Connection, orders: str) -> None:
    break_it(conn)
    conn.execute("DELETE FROM messages.audit")
    run(conn, verbs.resume_queue("orders"))
    assert not is_broken(conn)
    assert conn.execute("SELECT action, queue_name FROM messages.audit").fetchall() == [("resume_queue", "orders")]
    assert len(lease(conn, 2)) == 2
    fail(conn)
    assert is_broken(conn), "the last three still failed with one cause"


def test_a_probe_whose_consumer_dies_is_followed_by_another_one(conn: Connection, orders: str) -> None:
    break_it(conn)
    pass_time(conn)
    (lost,) = lease(conn)
    pass_time(conn)
    conn.execute("UPDATE messages.timer SET at = clock_timestamp()")
    conn.execute("UPDATE messages.message_rows SET lock_expires_at = clock_timestamp() WHERE id = %s", [lost.id])
    assert len(lease(conn, 10)) == 1
    assert lease(conn, 10) == []


def test_of_a_hundred_at_once_one_gets_a_message_and_nobody_waits_for_it(
    conn: Connection, connect: Connect, orders: str
) -> None:
    break_it(conn)
    pass_time(conn)
    holder = connect(autocommit=False)
    held = run(holder, verbs.lease("orders", max_messages=10))
    assert len(held) == 1
    sessions = [connect(options="-c lock_timeout=1s -c statement_timeout=5s") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda session: lease(session, 10), sessions))
        holder.rollback()
        pass_time(conn)
        found += list(pool.map(lambda session: lease(session, 10), sessions))
    assert [len(messages) for messages in found[:8]] == [0] * 8
    assert sum(len(messages) for messages in found[8:]) == 1


def test_an_empty_queue_wastes_no_pause(conn: Connection, orders: str) -> None:
    break_it(conn)
    run(conn, verbs.purge_queue("orders"))
    pass_time(conn)
    assert lease(conn) == []
    run(conn, verbs.publish("orders", "new"))
    assert [message.body for message in lease(conn)] == ["new"]


def test_whoever_waits_learns_when_the_next_message_is_let_through(conn: Connection, orders: str) -> None:
    break_it(conn)
    (found,) = run(conn, verbs.ready_queues(["orders"]))
    assert found.ready == 0
    assert found.next_in is not None
    assert timedelta(minutes=1) < found.next_in <= HOUR, "it does not poll"
    pass_time(conn)
    (found,) = run(conn, verbs.ready_queues(["orders"]))
    assert found.ready == 1


def test_health_and_metrics_name_it(conn: Connection, orders: str) -> None:
    def metric() -> float:
        (row,) = [
            row
            for row in run(conn, verbs.metrics(names=["pgqueue_queue_broken"]))
            if row["labels"]["queue"] == "orders"
        ]
        return float(row["value"])

    def check() -> tuple[str, str]:
        (row,) = [row for row in run(conn, verbs.health()) if row.check_name == "broken_queues"]
        return row.severity, row.finding

    assert (metric(), check()[0]) == (0, "ok")
    break_it(conn)
    assert metric() == 1
    assert check()[0] == "warning"
    assert "queue orders has been broken for 00:00:0" in check()[1]


def test_a_worker_waits_without_an_error_and_goes_on_when_the_queue_opens(
    conn: Connection, dsn: str, queue: Queue
) -> None:
    queue("orders", break_after=3, backoff_first=timedelta(milliseconds=100), backoff_max=timedelta(milliseconds=200))
    broken = []

    def handle(message: Message) -> None:
        if not broken:
            with psycopg.connect(dsn, autocommit=True) as other:
                if not is_broken(other):
                    raise ConnectionError("the service is down")
            broken.append(message.id)

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle, batch_size=1), poll_interval=60)
    with working(worker):
        run(conn, verbs.publish_batch("orders", list(range(20))))
        until(lambda: worker.counts["success"] == 20)
    assert broken
    assert not is_broken(conn)
