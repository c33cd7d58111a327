"""The rate of a queue: never more leases than promised in any period, hardly fewer, and nobody waits for anybody."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.client import Statement
from airflow_provider_pgqueue.core.consumer.consumer import Consumer
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.message import ReadyQueue
from airflow_provider_pgqueue.core.worker import Worker
from tests.core.consumer.test_worker import working
from tests.core.lease.test_groups import idle, lease, other, publish
from tests.core.lease.test_marks import bodies, scan_again
from tests.waiting import until, until_past, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
__all__ = ["idle", "other"]  # fixtures
HOUR = timedelta(hours=1)
# Three at once, and then none for an hour.
THREE = {"rate_limit": 1, "rate_period": HOUR, "rate_burst": 3}
LOCKS = """
    SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
     WHERE locktype = 'advisory' AND datname = current_database()
"""


def ready(conn: Connection) -> ReadyQueue:
    (found,) = run(conn, verbs.ready_queues(["orders"]))
    return found


def number(conn: Connection, **arguments: Any) -> int:
    return len(lease(conn, **arguments))


def test_a_burst_is_leased_at_once_and_then_one_after_the_other(conn: Connection, queue: Queue) -> None:
    queue("orders", rate_limit=10, rate_period=timedelta(seconds=2), rate_burst=3)
    run(conn, verbs.publish_batch("orders", range(20)))
    assert ready(conn).ready == 3
    first = lease(conn)
    assert len(first) == 3
    found = ready(conn)
    assert found.ready == 0
    assert timedelta(0) < found.next_in <= timedelta(seconds=0.2)
    began = conn.execute("SELECT min(leased_at) FROM messages.message").fetchone()
    for turn in (1, 2):
        until_past(conn, began[0] + turn * timedelta(seconds=0.2))
        assert number(conn) in (1, 2), "on a slow machine two fall due"


def most_in_a_period(times: list[datetime], period: timedelta) -> int:
    """Return the most that began in any one period."""
    times = sorted(times)
    return max(bisect_left(times, begin + period) - place for place, begin in enumerate(times))


@pytest.mark.long
def test_the_rate_is_kept_by_many_sessions_that_are_killed_or_time_out_and_next_to_an_idle_one(
    connect: Connect, idle: Connection, queue: Queue
) -> None:
    rate, burst, seconds = 100, 10, 2.0
    conn, stop = connect(), threading.Event()
    queue("orders", rate_limit=rate, rate_burst=burst)
    run(conn, verbs.publish_batch("orders", range(1000)))
    assert number(idle, max_messages=1) == 1  # and its transaction stays open

    def consume(place: int) -> None:
        chance = random.Random(place)
        impatient = "-c statement_timeout=4ms" if place % 5 == 0 else ""
        session = connect(options=impatient)
        while not stop.is_set():
            try:
                if place % 7 == 0:
                    run(session, verbs.consume("orders"))
                else:
                    lease(session, max_messages=chance.randint(1, 5))
            except (PgQueueError, psycopg.Error):
                if session.closed:
                    session = connect(options=impatient)
            time.sleep(chance.uniform(0.001, 0.03))

    def kill() -> None:
        session = connect()
        while not stop.wait(0.15):
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND query ~ 'messages\\.(lease|consume)' AND state = 'active'"
                " AND datname = current_database() ORDER BY random() LIMIT 1"
            )

    with ThreadPoolExecutor(21) as pool:
        killer = pool.submit(kill)
        consumers = [pool.submit(consume, place) for place in range(20)]
        began = time.monotonic()
        stop.wait(seconds)
        stop.set()
        took = time.monotonic() - began
        for worker in (killer, *consumers):
            worker.result()
    rows = conn.execute(
        "SELECT leased_at FROM messages.message WHERE leased_at IS NOT NULL"
        " UNION ALL SELECT leased_at FROM messages.message_archive"
    ).fetchall()
    times = [at for (at,) in rows]
    assert most_in_a_period(times, timedelta(seconds=1)) <= rate + burst - 1
    assert most_in_a_period(times, timedelta(seconds=0.1)) <= rate * 0.1 + burst - 1
    assert len(times) >= 0.8 * rate * took
    idle.rollback()
    assert conn.execute(LOCKS).rowcount == 0
    time.sleep(1 / rate)
    assert number(conn) >= 1


def test_whoever_leased_and_stays_idle_keeps_nobody_waiting(conn: Connection, idle: Connection, queue: Queue) -> None:
    queue("orders", **THREE)
    run(conn, verbs.publish_batch("orders", range(9)))
    assert number(idle, max_messages=1) == 1
    conn.execute("SET statement_timeout = '1s'")
    assert number(conn) == 2
    idle.rollback()
    assert number(conn) == 0, "what was rolled back is used up"


WAYS: dict[str, Statement[list[Any]]] = {
    "consume": verbs.consume("orders", max_messages=5),
    "dispatch_messages": verbs.dispatch_messages("orders", "handle", max_open=5),
    "lease": verbs.lease("orders", max_messages=5),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_leasing_keeps_to_the_rate(conn: Connection, queue: Queue, way: str) -> None:
    queue("orders", max_leased_per_group=100, **THREE)
    publish(conn, *(f"a{number}" for number in range(9)))
    assert len(run(conn, WAYS[way])) == 3
    for other_way in WAYS:
        assert run(conn, WAYS[other_way]) == []


def test_what_finds_nothing_to_lease_uses_up_nothing(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders", **THREE)
    assert number(conn) == 0
    run(conn, verbs.publish("orders", "later", delay=timedelta(hours=1)))
    for _ in range(5):
        assert number(conn) == 0
    run(conn, verbs.publish("orders", 1))
    publish(conn, "a1", "a2", "a3")
    assert bodies(lease(conn)) == [1, "a1"]
    publish(conn, "a4", "a5")
    assert number(conn) == 0
    publish(conn, "b1")
    assert bodies(lease(other)) == ["b1"], "what waits behind a1 used up nothing"
    publish(conn, "c1")
    assert number(conn) == 0


def test_what_a_lease_has_locked_is_leased_though_another_session_moves_the_mark(
    conn: Connection, other: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders", **THREE)
    run(conn, verbs.publish_batch("orders", range(5)))
    idle.execute("SELECT pg_advisory_xact_lock(lock_key, -2) FROM messages.queue")
    with ThreadPoolExecutor(1) as pool:
        leasing = pool.submit(lease, other)
        until_waiting(conn)
        conn.execute("SELECT messages.store_time(mark, clock_timestamp()) FROM messages.lane WHERE mark IS NOT NULL")
        idle.rollback()
        assert bodies(leasing.result()) == [0, 1, 2]


def test_behind_messages_of_groups_that_have_to_wait_others_are_found(conn: Connection, queue: Queue) -> None:
    queue("orders", rate_limit=1000, rate_burst=2)
    publish(conn, "a1")
    assert number(conn) == 1
    publish(conn, *[f"a{place}" for place in range(2, 8)], "b1")
    until(lambda: bodies(lease(conn)) == ["b1"], what="a lease of b1")


def test_both_limits_hold_together(conn: Connection, queue: Queue) -> None:
    queue("orders", max_leased=2, **THREE)
    run(conn, verbs.publish_batch("orders", range(9)))
    first, second = lease(conn)
    assert number(conn) == 0
    run(conn, verbs.archive(first.lock_token, [first.id, second.id]))
    assert number(conn) == 1


def test_a_changed_rate_counts_from_the_next_lease_on(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(30)))
    run(conn, verbs.alter_queue("orders", **THREE))
    assert (number(conn), number(conn)) == (3, 0)
    run(conn, verbs.alter_queue("orders", rate_period=timedelta(seconds=1), rate_limit=1000))
    until(lambda: number(conn, max_messages=5), timeout=3, what="a lease at the faster rate")
    run(conn, verbs.alter_queue("orders", rate_limit=0))
    assert number(conn, max_messages=10) == 10
    assert ready(conn).next_in != timedelta(0)


def test_the_slowest_rate_with_the_largest_burst_can_be_stored(conn: Connection, queue: Queue) -> None:
    queue("orders", rate_limit=1, rate_period=timedelta(days=31), rate_burst=10_000)
    run(conn, verbs.publish_batch("orders", range(10_000)))
    assert number(conn, max_messages=10_000) == 10_000
    run(conn, verbs.publish("orders", 1))
    assert number(conn) == 0


def test_a_time_from_before_the_clock_went_back_is_none(conn: Connection, queue: Queue) -> None:
    queue("orders", **THREE)
    run(conn, verbs.publish_batch("orders", range(9)))
    conn.execute(
        "SELECT messages.store_time(rate_mark, clock_timestamp() + interval '3 hours 1 second') FROM messages.queue"
        " WHERE queue_name = 'orders'"
    )
    assert number(conn) == 3


@pytest.mark.parametrize("lost", ["dropped", "not copied"])
def test_without_its_sequence_nothing_is_leased_beyond_the_rate_and_maintenance_makes_it_again(
    conn: Connection, queue: Queue, lost: str
) -> None:
    queue("orders", **THREE)
    run(conn, verbs.publish_batch("orders", range(9)))
    ((sequence,),) = conn.execute("SELECT rate_mark::text FROM messages.queue WHERE queue_name = 'orders'").fetchall()
    if lost == "dropped":
        conn.execute(f"DROP SEQUENCE {sequence}".encode())
        with pytest.raises(psycopg.Error):
            number(conn)
    else:
        conn.execute("UPDATE messages.queue SET rate_mark = NULL WHERE queue_name = 'orders'")
        assert number(conn) == 0
    conn.execute("SELECT messages.maintain()")
    assert (number(conn), number(conn)) == (3, 0)


def test_the_sequence_of_a_dropped_queue_is_dropped_with_it(conn: Connection, queue: Queue) -> None:
    queue("orders", **THREE)
    marks = "SELECT count(*) FROM messages.queue q JOIN messages.unused_sequence u ON u.sequence = q.rate_mark"
    ((sequence,),) = conn.execute("SELECT rate_mark::oid FROM messages.queue WHERE queue_name = 'orders'").fetchall()
    assert conn.execute(marks).fetchone() == (0,)
    run(conn, verbs.drop_queue("orders"))
    assert conn.execute("SELECT FROM messages.unused_sequence WHERE sequence = %s", [sequence]).rowcount == 1


def test_nobody_looks_again_before_the_next_lease_may_begin(conn: Connection, queue: Queue) -> None:
    queue("orders", **THREE)
    run(conn, verbs.publish_batch("orders", range(3)))
    assert number(conn) == 3
    scan_again(conn)
    found = ready(conn)
    assert found.next_in < timedelta(minutes=5), "a lease ends then"
    run(conn, verbs.publish("orders", 1))
    found = ready(conn)
    assert (found.ready, found.oldest_age is not None) == (0, True), "health sees that it waits"
    assert found.next_in > timedelta(minutes=55)


CALLS = """
    SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions
     WHERE schemaname = 'messages' AND funcname IN ('lease', 'ready_queues')
"""


def test_a_worker_handles_one_when_it_may_and_asks_for_nothing_in_between(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    """With a poll interval of a minute; without a notification, because all were published before it began."""
    database = sql.Identifier(conn.info.dbname)
    conn.execute(sql.SQL("ALTER DATABASE {} SET track_functions = 'all'").format(database))
    queue("orders", rate_limit=2)
    run(conn, verbs.publish_batch("orders", range(8)))
    handled: list[float] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: handled.append(time.monotonic()))
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=60)):
        until(lambda: len(handled) == 8, timeout=20, what="eight messages")
        assert 3.4 < handled[-1] - handled[0] < 6.5, "eight at two a second"
    ((calls,),) = conn.execute(CALLS).fetchall()
    assert 8 <= calls <= 8 * 5
