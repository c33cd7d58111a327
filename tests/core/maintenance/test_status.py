"""`status` counts what is short, and says of what is long that there is more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.message import QueueStatus
from airflow_provider_pgqueue.core.quantity import quantity, seen
from tests.core.lease.test_marks import scan_again

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

LONG = 12_000


def fill(conn: Connection, number: int = LONG, *, queues: int = 1, one_in: int = 0) -> None:
    """Publish into queue `orders`, or in turns into `orders_0`, `orders_1`, …; one in `one_in` for tomorrow."""
    conn.execute(
        """INSERT INTO messages.message (queue_name, message, visible_at)
           SELECT CASE WHEN %(queues)s = 1 THEN 'orders' ELSE 'orders_' || n %% %(queues)s END, '{}',
                  clock_timestamp() + CASE WHEN n %% nullif(%(one_in)s, 0) = 1 THEN interval '1 day' ELSE '0' END
             FROM generate_series(1, %(number)s) n""",
        {"queues": queues, "number": number, "one_in": one_in},
    )


def both(conn: Connection, queue_name: str = "orders") -> tuple[QueueStatus, QueueStatus]:
    """Return the quick numbers and the exact ones."""
    (quick,), (exact,) = run(conn, verbs.status(queue_name)), run(conn, verbs.status(queue_name, exact=True))
    assert (quick.counted_up_to, exact.counted_up_to) == (10_000, None)
    assert quick.depth == quick.ready + quick.leased + quick.delayed
    return quick, exact


def test_up_to_ten_thousand_messages_are_counted(conn: Connection, queue: Queue) -> None:
    fill(conn, 10_000 if queue("orders") else 0, one_in=4)
    leased = run(conn, verbs.lease("orders", max_messages=100))
    quick, exact = both(conn)
    assert (quick.depth, quick.ready, quick.leased, quick.delayed) == (10_000, 7400, len(leased), 2500)
    assert (exact.depth, exact.ready, exact.leased, exact.delayed) == (10_000, 7400, len(leased), 2500)


def test_of_a_long_queue_people_see_what_was_counted_and_programs_what_the_planner_knows(
    conn: Connection, queue: Queue
) -> None:
    fill(conn, LONG if queue("orders") else 0)
    leased = run(conn, verbs.lease("orders", max_messages=300))
    quick, exact = both(conn)
    assert exact.depth == LONG
    assert (quick.depth, quick.leased) == (10_001, len(leased))
    assert f"{quick.seen('depth'):,}" == "10,000+"
    conn.execute("ANALYZE messages.message_rows")
    quick, exact = both(conn)
    assert abs(quick.depth - LONG) < LONG / 10
    assert quick.leased == len(leased) == exact.leased
    assert f"{quick.seen('depth'):,} {quick.seen('leased'):,}" == "10,000+ 300+"
    assert quick.oldest_age is not None
    assert abs(quick.oldest_age - exact.oldest_age) < timedelta(minutes=1)


def test_what_was_deleted_is_not_counted_whatever_the_planner_knows(conn: Connection, queue: Queue) -> None:
    for name in ("orders_0", "orders_1"):
        queue(name)
    fill(conn, 2 * LONG, queues=2)
    conn.execute("ANALYZE messages.message_rows")
    assert run(conn, verbs.purge_queue("orders_0")) == LONG
    (purged,) = run(conn, verbs.status("orders_0"))
    assert (purged.depth, purged.oldest_age) == (0, None)
    quick, _ = both(conn, "orders_1")
    assert abs(quick.depth - LONG) < LONG / 10


def test_what_was_not_counted_is_in_the_state_of_the_last_that_was(conn: Connection, queue: Queue) -> None:
    fill(conn, LONG if queue("orders") else 0)
    for ready in (True, False):
        conn.execute("VACUUM ANALYZE messages.message_rows")
        quick, exact = both(conn)
        assert quick.depth > 10_001
        assert (quick.ready > 0, quick.delayed > 0) == (exact.ready > 0, exact.delayed > 0) == (ready, not ready)
        conn.execute("UPDATE messages.message SET visible_at = visible_at + interval '1 day'")


def test_the_oldest_ready_message_of_a_long_queue_is_found_in_any_priority(conn: Connection, queue: Queue) -> None:
    conn.execute("SELECT messages.publish(%s, '{}', priority => 0)", [queue("orders")])
    conn.execute("UPDATE messages.message SET visible_at = visible_at - interval '1 hour'")
    fill(conn)
    (found,) = run(conn, verbs.status("orders"))
    assert found.depth > 10_000
    assert found.oldest_age > timedelta(hours=1)


@pytest.mark.long
def test_the_oldest_ready_message_is_found_behind_ten_thousand_that_are_leased(conn: Connection, queue: Queue) -> None:
    queue("orders")
    fill(conn, 20_100)
    for _ in range(2):
        assert len(run(conn, verbs.lease("orders", max_messages=10_000))) == 10_000
    scan_again(conn)  # which moves the mark behind them
    run(conn, verbs.scan(["orders"]))
    quick, exact = both(conn)
    assert quick.oldest_age is not None
    assert exact.oldest_age is not None
    assert abs(quick.oldest_age - exact.oldest_age) < timedelta(seconds=10)


def test_of_many_dead_messages_people_see_what_was_counted(conn: Connection, queue: Queue) -> None:
    conn.execute(
        "INSERT INTO messages.dead_message (id, archived_at, queue_name, result)"
        " SELECT n, clock_timestamp(), %s, 'failed' FROM generate_series(1, %s) n",
        [queue("orders"), LONG],
    )
    quick, exact = both(conn)
    assert exact.dead == LONG
    assert (quick.dead, f"{quick.seen('dead'):,}", f"{quick.seen('depth'):,}") == (10_001, "10,000+", "0")
    conn.execute("ANALYZE messages.dead_message")
    assert abs(both(conn)[0].dead - LONG) < LONG / 10


def test_of_many_queues_each_is_counted_less_far_and_all_are_there(conn: Connection, queue: Queue) -> None:
    names = [queue(f"orders_{number}") for number in range(60)]
    fill(conn, LONG, queues=60)
    run(conn, verbs.publish_batch("orders_7", [1] * 5000))
    found = {one.queue_name: one for one in run(conn, verbs.status())}
    assert set(names) < set(found)
    assert {found[name].depth for name in names if name != "orders_7"} == {LONG / 60}
    assert found["orders_7"].depth == found["orders_7"].counted_up_to + 1
    assert {one.seen("depth") for one in found.values() if one.queue_name != "orders_7"} <= {0, LONG // 60}


@pytest.mark.long
def test_the_quick_status_reads_as_much_of_a_queue_of_any_length(conn: Connection, queue: Queue) -> None:
    fill(conn, LONG if queue("orders") else 0)
    before = {exact: pages_read(conn, exact=exact) for exact in (False, True)}
    fill(conn, 2 * LONG)
    for exact in (False, True):
        assert (pages_read(conn, exact=exact) < 1.1 * before[exact]) is not exact


def pages_read(conn: Connection, *, exact: bool) -> int:
    fetched = "SELECT pg_stat_get_xact_blocks_fetched('messages.message_rows'::regclass)"
    with conn.transaction():
        ((before,),) = conn.execute(fetched).fetchall()
        run(conn, verbs.status("orders", exact=exact))
        ((after,),) = conn.execute(fetched).fetchall()
    return int(after - before)


def test_a_number_of_which_there_is_more_is_printed_with_a_plus() -> None:
    assert f"{seen(1_234_567, 1_234_567, 10_000)}" == "10000+"
    assert quantity(seen(1_234_567, 1_234_567, 10_000)) == "10,000+ messages"
    assert quantity(seen(17, 10_001, 10_000)) == "17+ messages"
    assert quantity(seen(10_000, 10_000, 10_000)) == "10,000 messages"
    assert quantity(seen(1_234_567, 1_234_567, None)) == "1,234,567 messages"
    assert seen(1_234_567, 1_234_567, 10_000) == 1_234_567


def limited_until(conn: Connection) -> datetime | None:
    quick, exact = both(conn)
    assert quick.limited_until == exact.limited_until
    return quick.limited_until


def test_limited_until_is_the_earliest_end_of_a_lease_where_all_are_taken(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_leased=2), range(5)))
    run(conn, verbs.publish("orders", 5, delay=timedelta(hours=9)))
    (first,) = run(conn, verbs.lease("orders", lease_for=timedelta(minutes=3)))
    assert limited_until(conn) is None
    (second,) = run(conn, verbs.lease("orders", lease_for=timedelta(minutes=5)))
    assert run(conn, verbs.lease("orders")) == []
    assert limited_until(conn) == first.lock_expires_at
    run(conn, verbs.alter_queue("orders", max_leased=1))  # one lease has to end, and then another
    assert limited_until(conn) == second.lock_expires_at
    run(conn, verbs.archive(second.lock_token, [second.id]))
    assert limited_until(conn) == first.lock_expires_at
    run(conn, verbs.release(first.lock_token, [first.id]))
    assert limited_until(conn) is None


def test_limited_until_is_the_later_of_two_limits(conn: Connection, queue: Queue) -> None:
    run(
        conn, verbs.publish_batch(queue("orders", max_leased=1, rate_limit=1, rate_period=timedelta(hours=1)), range(2))
    )
    (leased,) = run(conn, verbs.lease("orders", lease_for=timedelta(minutes=3)))
    assert (limited_until(conn) or leased.created_at) > leased.lock_expires_at
    run(conn, verbs.extend(leased.lock_token, [leased.id], lease_for=timedelta(hours=2)))
    assert (limited_until(conn) or leased.created_at) > leased.created_at + timedelta(minutes=119)
