"""Groups of which several messages may be leased at once: never more, and no room is left unused."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import LeaseLost
from tests.core.lease.test_groups import HOUR, finish, idle, lease, other, publish
from tests.core.lease.test_marks import bodies, scan_again
from tests.waiting import until, until_past

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
__all__ = ["idle", "other"]  # fixtures
LEASED = """
    SELECT count(*) FROM messages.message WHERE lock_expires_at > statement_timestamp()
     GROUP BY group_key HAVING count(*) >= 3
"""


def test_as_many_of_a_group_are_leased_as_may_be_and_each_end_lets_one_in(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", max_leased_per_group=3)
    publish(conn, "a1", "a2", "a3", "a4", "a5", "b1", "a6")
    a1, a2, a3, b1 = lease(conn)
    assert bodies([a1, a2, a3, b1]) == ["a1", "a2", "a3", "b1"]
    assert lease(other) == []
    finish(conn, a2)
    assert bodies(lease(other)) == ["a4"]
    run(conn, verbs.release(a1.lock_token, [a1.id]))
    assert bodies(lease(other)) == ["a1"]
    finish(conn, b1)
    finish(conn, a3)
    assert bodies(lease(other)) == ["a5"]
    assert lease(conn) == []


def test_what_waits_behind_others_comes_back_for_the_room_that_there_is(conn: Connection, queue: Queue) -> None:
    """What comes back in vain is put behind again, which rewrites its row and three entries of indexes."""
    queue("orders", max_leased_per_group=10)
    run(conn, verbs.publish_batch("orders", range(100), group_keys=["a"] * 100))
    first, *_ = lease(conn)
    finish(conn, first)
    ready = "SELECT count(*) FROM messages.message WHERE visible_at < 'infinity' AND lock_expires_at IS NULL"
    assert conn.execute(ready).fetchone() == (1,)


def test_a_lower_limit_holds_for_what_is_ready_already(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders", max_leased_per_group=5)
    publish(conn, *(f"a{n}" for n in range(1, 9)))
    a1, a2 = lease(conn, max_messages=2)
    run(conn, verbs.alter_queue("orders", max_leased_per_group=1))
    assert lease(other) == []
    finish(conn, a1)
    assert lease(other) == []
    finish(conn, a2)
    for number in range(3, 9):
        (message,) = lease(other)
        assert message.body == f"a{number}"
        finish(other, message)


def test_groups_that_a_lower_limit_closes_keep_a_scan_from_no_other_group(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", max_leased_per_group=3)
    publish(conn, "a1", "a2", "a3", "b1", "b2", "b3")
    a1, a2, _, b1, b2, _ = lease(conn)
    run(conn, verbs.alter_queue("orders", max_leased_per_group=2))
    for message in (a1, a2, b1, b2):
        finish(conn, message)
    publish(conn, "a4", "b4", "z1", "z2", "z3")
    assert lease(conn, max_messages=2) != []
    conn.execute("DELETE FROM messages.message WHERE message IN ('\"z1\"', '\"z2\"')")
    conn.execute("DELETE FROM messages.timer WHERE group_key IS NOT NULL")
    scan_again(conn)
    assert bodies(lease(other, max_messages=1)) == ["z3"]


def test_where_several_may_be_leased_a_delayed_one_lets_others_pass(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", max_leased_per_group=2)
    publish(conn, "a1", "a2", "a3", "a4", "a5")
    for message in lease(conn):
        run(conn, verbs.release(message.lock_token, [message.id], delay=HOUR))
    scan_again(conn)
    assert bodies(lease(other)) == ["a3", "a4"]
    scan_again(conn)
    assert lease(conn) == []


def test_a_delay_holds_where_keys_take_turns_too(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders", max_leased_per_group=2, fair_by="group")
    publish(conn, "a1", "b1")
    for message in lease(conn):
        run(conn, verbs.release(message.lock_token, [message.id], delay=HOUR))
    scan_again(conn)
    assert lease(other) == []
    assert conn.execute("SELECT FROM messages.message WHERE due_at > clock_timestamp()").rowcount == 2


def test_a_lease_that_ended_lets_one_in_and_not_two(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders", max_leased_per_group=2)
    publish(conn, "a1", "a2", "a3", "a4")
    (a1,) = lease(conn, max_messages=1)
    (a2,) = lease(other, max_messages=1)
    assert bodies([a1, a2]) == ["a1", "a2"]
    run(conn, verbs.extend(a1.lock_token, [a1.id], lease_for=timedelta(milliseconds=1)))
    time.sleep(0.005)
    scan_again(conn)
    assert bodies(lease(conn)) == ["a1"]
    assert lease(other) == []


@pytest.mark.parametrize("on_dead_head", ["block", "skip"])
def test_a_dead_message_blocks_the_rest_of_its_group_or_not_as_the_queue_says(
    conn: Connection, other: Connection, queue: Queue, on_dead_head: str
) -> None:
    queue("orders", max_leased_per_group=2, max_attempts=1, on_dead_head=on_dead_head)
    publish(conn, "a1", "a2", "a3")
    a1, a2 = lease(conn)
    finish(conn, a1, "failed")
    scan_again(other)
    assert bodies(lease(other)) == ([] if on_dead_head == "block" else ["a3"])
    if on_dead_head == "block":
        (dead,) = run(other, verbs.lease_dead("orders"))
        run(other, verbs.dismiss(dead.lock_token, [dead.id], "an order of a test"))
        assert bodies(lease(other)) == ["a3"]
    finish(conn, a2)


@pytest.mark.parametrize("dies", ["failed", "lock_expired"])
def test_a_dead_message_blocks_also_those_of_its_group_that_are_ready(
    conn: Connection, other: Connection, queue: Queue, dies: str
) -> None:
    queue("orders", max_leased_per_group=3, max_attempts=1)
    publish(conn, "a1", "a2", "a3")
    (a1,) = lease(conn, max_messages=1, lease_for=timedelta(milliseconds=1) if dies == "lock_expired" else HOUR)
    publish(conn, "b1")
    if dies == "lock_expired":
        until_past(conn, a1.lock_expires_at)
        scan_again(other)
    else:
        finish(conn, a1, dies)
    assert bodies(lease(other)) == ["b1"]
    run(other, verbs.requeue_dead("orders"))
    assert sorted(bodies(lease(other))) == ["a1", "a2", "a3"]


def test_a_queue_that_blocks_from_now_on_blocks_what_is_ready(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1, on_dead_head="skip")
    publish(conn, "a1", "b1", "a2")
    a1, _ = lease(conn)
    finish(conn, a1, "failed")
    run(conn, verbs.alter_queue("orders", on_dead_head="block"))
    assert lease(conn) == []
    run(conn, verbs.alter_queue("orders", on_dead_head="skip"))
    assert bodies(lease(conn)) == ["a2"]


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0)])
def test_a_larger_limit_lets_more_in_at_once_and_a_smaller_one_waits_until_enough_have_ended(
    conn: Connection, other: Connection, queue: Queue, order: tuple[int, int, int]
) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "a3", "a4", "a5")
    (a1,) = lease(conn)
    run(conn, verbs.alter_queue("orders", max_leased_per_group=3))
    a2, a3 = lease(other)
    assert bodies([a2, a3]) == ["a2", "a3"]
    run(conn, verbs.alter_queue("orders", max_leased_per_group=1))
    leased = [(a1, a2, a3)[number] for number in order]
    for message in leased[:2]:
        finish(conn, message)
        scan_again(conn)
        assert lease(conn) == []
    finish(conn, leased[2])
    assert bodies(lease(conn)) == ["a4"]


def test_two_that_end_at_the_same_time_leave_no_room_that_a_look_does_not_fill(
    conn: Connection, other: Connection, idle: Connection, queue: Queue
) -> None:
    """Neither sees that the other ends, and the second leaves out what the first has let in."""
    queue("orders", max_leased_per_group=3)
    publish(conn, "a1", "a2", "a3", "a4", "a5", "a6")
    a1, a2, _ = lease(conn)
    finish(idle, a1)
    finish(other, a2)
    idle.commit()
    scan_again(conn)
    assert bodies(lease(conn)) == ["a4", "a5"]


@pytest.mark.long
def test_no_more_of_a_group_are_leased_than_may_be_while_leases_begin_and_end_in_every_way(
    connect: Connect, queue: Queue
) -> None:
    """Eight consumers that crash, roll back, release and let leases end, over five groups."""
    conn, stop = connect(), threading.Event()
    queue("orders", max_leased_per_group=3, max_attempts=1000)
    run(conn, verbs.publish_batch("orders", range(500), group_keys=[f"g{n % 5}" for n in range(500)]))

    def consume(number: int) -> None:
        session, chance = connect(), random.Random(number)
        while not stop.is_set():
            what = chance.random()
            if what < 0.05:
                lease(session, max_messages=5, lease_for=timedelta(milliseconds=20))
                session.close()
                session = connect()
            elif what < 0.1:
                take = verbs.lease if what < 0.07 else verbs.consume
                with session.transaction(force_rollback=True):
                    run(session, take("orders", max_messages=5))
            elif what < 0.15:
                run(session, verbs.consume("orders", max_messages=2))
            else:
                leased = lease(session, max_messages=chance.randint(1, 10))
                for message in leased:
                    end = verbs.release if chance.random() < 0.1 else verbs.archive
                    with suppress(LeaseLost):
                        run(session, end(message.lock_token, [message.id]))
                if not leased:
                    stop.wait(0.02)

    def watch() -> set[int]:
        session, found = connect(), set[int]()
        while not stop.wait(0.005):
            found.update(number for (number,) in session.execute(LEASED).fetchall())
        return found

    with ThreadPoolExecutor(9) as pool:
        most = pool.submit(watch)
        try:
            consumers = [pool.submit(consume, number) for number in range(8)]
            empty = "SELECT FROM messages.message"
            until(lambda: conn.execute(empty).rowcount == 0, timeout=120, what="an empty queue")
        finally:
            stop.set()
        for consumer in consumers:
            consumer.result()
        assert most.result() == {3}
