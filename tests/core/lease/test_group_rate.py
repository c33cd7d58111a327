"""The rate of each group: never more leases than promised, hardly fewer, and nobody waits for anybody."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.consumer.loop import Consumer
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.worker import Worker
from tests.core.consumer.test_worker import working
from tests.core.lease.test_groups import HOUR, finish, idle, lease, other, publish
from tests.core.lease.test_marks import bodies, look_again
from tests.core.lease.test_rate import CALLS, ready
from tests.waiting import until, until_past

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
__all__ = ["idle", "other"]  # fixtures
# Of each group two at once, and then none for an hour.
TWO = {"rate_limit_per_group": 1, "rate_period": HOUR, "rate_burst": 2, "max_leased_per_group": 100}


def an_hour_passes(conn: Connection) -> None:
    conn.execute(
        "UPDATE messages.group_rate SET spent = spent - interval '1 hour', wakes_at = wakes_at - interval '1 hour'"
    )
    conn.execute("UPDATE messages.timer SET at = at - interval '1 hour' WHERE lock_token IS NULL")


def rows_written(conn: Connection) -> int:
    ((written,),) = conn.execute(
        "SELECT pg_stat_get_xact_tuples_updated('messages.message_rows'::regclass)"
        " + pg_stat_get_xact_tuples_inserted('messages.timer'::regclass)"
    ).fetchall()
    return int(written)


def test_each_group_has_a_rate_of_its_own_and_other_messages_have_none(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3", "b1", "a4")
    run(conn, verbs.publish_batch("orders", ["x", "y", "z"]))
    assert bodies(lease(conn)) == ["a1", "a2", "b1", "x", "y", "z"]
    publish(conn, "b2", "b3", "c1")
    assert bodies(lease(conn)) == ["b2", "c1"]
    look_again(conn)
    assert lease(conn) == []
    an_hour_passes(conn)
    assert sorted(bodies(lease(conn))) == ["a3", "b3"]


def test_the_next_is_ready_and_rings_when_the_rate_allows_it_and_not_before(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders", rate_limit_per_group=2, rate_period=timedelta(seconds=1))
    publish(conn, "a1", "a2", "a3")
    (a1,) = lease(conn)
    finish(conn, a1)
    listener = connect()
    listener.execute("LISTEN new_message")
    for body in ("a2", "a3"):
        assert ready(conn).ready == 0
        ((wakes_at,),) = conn.execute("SELECT wakes_at FROM messages.group_rate").fetchall()
        assert lease(conn) == []
        assert list(listener.notifies(timeout=0)) == []
        until_past(conn, wakes_at)
        assert ready(conn).ready == 1
        assert len(list(listener.notifies(timeout=1, stop_after=1))) == 1
        (message,) = lease(conn)
        assert message.body == body
        finish(conn, message)


def test_a_group_that_waits_has_one_timer_and_nobody_writes_its_messages_again(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, *(f"a{number}" for number in range(50)))
    for message in lease(conn):
        finish(conn, message)
    for number in range(50, 55):
        publish(conn, f"a{number}")
        assert lease(conn) == []
    with conn.transaction():
        before = rows_written(conn)
        for _ in range(5):
            look_again(conn)
            assert lease(conn) == []
            assert ready(conn).ready == 0
        assert rows_written(conn) == before
    timers = "SELECT FROM messages.timer t JOIN messages.group_rate r ON t.at = r.wakes_at"
    assert conn.execute(timers).rowcount == 1


def finish_one(conn: Connection) -> int:
    """Lease a message, finish it, and return how many were finished so far."""
    for message in lease(conn, max_messages=1):
        finish(conn, message)
    return conn.execute("SELECT FROM messages.message_archive").rowcount


class Call(NamedTuple):
    began: float
    returned: float
    groups: list[str | None]


def test_the_rate_of_each_group_is_kept_by_a_hundred_sessions_next_to_an_idle_one(
    connect: Connect, idle: Connection, queue: Queue
) -> None:
    """Each token was taken between the beginning and the end of its call: so the times of the callers judge."""
    rate, burst, seconds, groups = 5, 3, 4.0, 5
    conn, stop = connect(), threading.Event()
    queue("orders", rate_limit_per_group=rate, rate_burst=burst, max_leased_per_group=1000, max_attempts=1000)
    keys = [f"g{number % groups}" for number in range(400)]
    run(conn, verbs.publish_batch("orders", range(400), group_keys=keys))
    started = time.monotonic()
    (held, *_) = lease(idle, max_messages=1)
    calls: list[Call] = []

    def consume(place: int) -> None:
        chance = random.Random(place)
        session = connect(options="-c statement_timeout=5ms" if place % 10 == 0 else "")
        while not stop.is_set():
            began = time.monotonic()
            try:
                if place % 7 == 0:
                    leased = run(session, verbs.consume("orders"))
                else:
                    leased = lease(session, max_messages=chance.randint(1, 5))
                calls.append(Call(began, time.monotonic(), [message.group_key for message in leased]))
                for message in leased:
                    if message.lock_token and chance.random() < 0.9:
                        end = verbs.release if chance.random() < 0.2 else verbs.archive
                        run(session, end(message.lock_token, [message.id]))
            except (PgQueueError, psycopg.Error):
                pass  # it timed out
            time.sleep(chance.uniform(0.1, 0.5))

    with ThreadPoolExecutor(100) as pool:
        consumers = [pool.submit(consume, place) for place in range(100)]
        stop.wait(seconds)
        stop.set()
        for consumer in consumers:
            consumer.result()
    idle.rollback()
    leased = defaultdict[str | None, list[tuple[float, float]]](list)
    for call in calls:
        for group in call.groups:
            leased[group].append((call.began, call.returned))
    assert leased.keys() == set(keys) - {held.group_key}
    for group, tokens in leased.items():
        took = max(end for _, end in tokens) - started
        assert len(tokens) >= 0.5 * rate * took, group
        for begin, _ in tokens:
            for _, end in tokens:
                within = sum(begin <= one and other <= end for one, other in tokens)
                assert within <= max(rate * (end - begin), 0) + burst, group


def test_each_delivery_counts_and_the_order_of_a_group_stays(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO | {"max_leased_per_group": 1})
    publish(conn, "a1", "a2", "a3")
    (a1,) = lease(conn)
    run(conn, verbs.release(a1.lock_token, [a1.id]))
    (a1,) = lease(conn)
    run(conn, verbs.release(a1.lock_token, [a1.id]))
    look_again(conn)
    assert lease(conn) == []
    an_hour_passes(conn)
    (a1,) = lease(conn)
    assert a1.body == "a1"
    finish(conn, a1)
    an_hour_passes(conn)
    assert bodies(lease(conn)) == ["a2"]


def test_the_rate_of_the_queue_and_that_of_a_group_hold_together(conn: Connection, queue: Queue) -> None:
    """What the rate of the queue refuses uses up nothing of that of the group, nor the other way."""
    queue("orders", **TWO | {"rate_limit": 1})
    publish(conn, "a1", "b1", "a2", "a3")
    assert bodies(lease(conn)) == ["a1", "b1"]
    conn.execute("SELECT setval(rate_mark, 1) FROM messages.queue WHERE queue_name = 'orders'")
    assert bodies(lease(conn)) == ["a2"]
    assert lease(conn) == []
    publish(conn, "c1")
    assert bodies(lease(conn)) == ["c1"]


def test_who_looks_at_a_message_that_has_to_wait_sees_until_when(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3")
    lease(conn)
    (waits,) = run(conn, verbs.search_messages("orders", state="delayed"))
    ((wakes_at,),) = conn.execute("SELECT wakes_at FROM messages.group_rate").fetchall()
    assert (waits["state"], waits["ends_at"]) == ("behind", wakes_at)


def test_a_message_that_another_transaction_has_keeps_no_other_of_its_group(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3", "a4")
    with other.transaction():
        other.execute("SELECT FROM messages.message WHERE message IN ('\"a1\"', '\"a2\"') FOR UPDATE")
        assert bodies(lease(conn)) == ["a3", "a4"]


def test_a_message_that_comes_late_gets_a_timer_next_to_a_rate_of_the_queue_too(conn: Connection, queue: Queue) -> None:
    queue("orders", rate_limit=1_000_000, **TWO)
    publish(conn, "a1", "a2")
    until(lambda: finish_one(conn) == 2, what="two of the group")
    publish(conn, "a3")
    time.sleep(0.1)  # the queue allows two more by then
    assert lease(conn) == []
    assert conn.execute("SELECT FROM messages.group_rate WHERE wakes_at > clock_timestamp()").rowcount == 1
    an_hour_passes(conn)
    until(lambda: bodies(lease(conn)) == ["a3"], what="a3")


def test_what_the_upkeep_deleted_gives_an_older_snapshot_no_second_rate(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3", "a4", "b1")
    (a1,) = lease(conn, max_messages=1)
    finish(conn, a1)
    conn.execute("UPDATE messages.group_rate SET spent = spent - interval '3 hours'")
    idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    idle.execute("SELECT FROM messages.message")
    conn.execute("SELECT messages.upkeep()")
    assert bodies([*lease(idle, max_messages=1), *lease(idle, max_messages=1), *lease(idle)]) == ["a2", "a3", "b1"]


def test_an_upkeep_that_stays_open_keeps_no_lease_waiting(
    conn: Connection, idle: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3")
    lease(conn, max_messages=1)
    conn.execute("UPDATE messages.group_rate SET spent = spent - interval '3 hours'")
    idle.execute("SELECT messages.upkeep()")
    assert lease(other) == [], "the upkeep has the group"
    idle.commit()
    assert bodies(lease(other)) == ["a2", "a3"]


def test_a_rolled_back_lease_gives_the_rate_back(conn: Connection, idle: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3")
    assert bodies(lease(idle)) == ["a1", "a2"]
    assert lease(conn) == [], "nobody else leases from the group meanwhile"
    idle.rollback()
    assert bodies(lease(conn)) == ["a1", "a2"]


def test_the_next_is_found_by_a_look_if_the_one_that_its_timer_names_is_gone(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    _, _, a3, _ = publish(conn, "a1", "a2", "a3", "a4")
    assert bodies(lease(conn)) == ["a1", "a2"]
    assert run(conn, verbs.cancel("orders", [a3])) == [a3]
    an_hour_passes(conn)
    look_again(conn)
    assert bodies(lease(conn)) == ["a4"]


@pytest.mark.parametrize("change", ["lifted", "faster", "more"])
def test_a_changed_rate_counts_from_the_next_look_on(conn: Connection, queue: Queue, change: str) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3", "a4")
    assert bodies(lease(conn)) == ["a1", "a2"]
    changes: dict[str, dict[str, Any]] = {
        "lifted": {"rate_limit_per_group": 0},
        "faster": {"rate_period": timedelta(seconds=1)},
        "more": {"rate_burst": 100},
    }
    run(conn, verbs.alter_queue("orders", **changes[change]))
    look_again(conn)
    assert bodies(lease(conn)) == ["a3", "a4"]


def test_a_time_of_a_group_from_before_the_clock_went_back_is_none(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "a2", "a3", "a4")
    assert bodies(lease(conn)) == ["a1", "a2"]
    conn.execute(
        "UPDATE messages.group_rate SET spent = spent + interval '3 hours', wakes_at = wakes_at + interval '3 hours'"
    )
    look_again(conn)
    assert bodies(lease(conn)) == ["a3", "a4"]


def test_what_a_group_used_is_forgotten_when_it_no_longer_counts(conn: Connection, queue: Queue) -> None:
    queue("orders", **TWO)
    publish(conn, "a1", "b1", "b2")
    lease(conn)
    conn.execute("UPDATE messages.group_rate SET spent = spent - interval '62 minutes'")
    conn.execute("SELECT messages.upkeep()")
    assert conn.execute("SELECT group_key FROM messages.group_rate").fetchall() == [("b",)]
    run(conn, verbs.drop_queue("orders", force=True))
    assert conn.execute("SELECT FROM messages.group_rate").rowcount == 0


@pytest.mark.parametrize("rate", [{}, {"rate_limit": 1_000_000}])
def test_thousands_of_groups_that_have_to_wait_keep_nobody_from_what_is_behind_them(
    conn: Connection, queue: Queue, rate: dict[str, int]
) -> None:
    queue("orders", **TWO | rate)
    keys = [f"key {number}" for number in range(5000)]
    run(conn, verbs.publish_batch("orders", keys, group_keys=keys))
    conn.execute(
        "INSERT INTO messages.group_rate (queue_name, group_key, spent)"
        " SELECT queue_name, group_key, clock_timestamp() + interval '2 hours' FROM messages.message"
    )
    run(conn, verbs.publish("orders", "free", group_key="free"))
    assert "free" in [body for _ in range(3) for body in bodies(lease(conn, max_messages=1))]


def test_an_upkeep_forgets_more_groups_than_use_the_rate_in_a_minute_and_holds_few_locks(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    for name in ("orders", "calls", "mails"):
        queue(name, **TWO)
        conn.execute(
            "INSERT INTO messages.group_rate (queue_name, group_key, spent)"
            " SELECT %s, n::text, clock_timestamp() - interval '1 hour' FROM generate_series(1, 20000) n",
            [name],
        )
    rows = "SELECT FROM messages.group_rate"
    for left in (40_000, 20_000, 0):
        idle.execute("SELECT messages.upkeep()")
        locks = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert idle.execute(locks).rowcount <= 1024
        idle.commit()
        assert conn.execute(rows).rowcount == left


def test_a_worker_handles_one_of_each_group_when_it_may(dsn: str, conn: Connection, queue: Queue) -> None:
    """With a poll interval of a minute; without a ring, because all were published before it began."""
    conn.execute(f"ALTER DATABASE \"{conn.info.dbname}\" SET track_functions = 'all'".encode())
    queue("orders", rate_limit_per_group=2)
    publish(conn, *(f"{group}{number}" for number in range(5) for group in "ab"))
    handled: list[float] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: handled.append(time.monotonic()))
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=60)):
        until(lambda: len(handled) == 10, timeout=20, what="ten messages")
        assert 1.9 < handled[-1] - handled[0] < 5, "five of each group at two a second"
    ((calls,),) = conn.execute(CALLS).fetchall()
    assert calls <= 10 * 5
