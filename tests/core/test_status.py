"""`status` counts what is short and estimates what is long, and says how exact it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.message import QueueStatus
from airflow_provider_pgqueue.core.quantity import estimate, quantity

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

LONG = 30_000


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
    assert exact.depth_margin == exact.dead_margin == 0
    return quick, exact


def assert_within_its_margin(quick: QueueStatus, exact: QueueStatus) -> None:
    assert quick.depth_margin > 0
    assert abs(quick.depth - exact.depth) <= quick.depth_margin
    assert quick.depth == quick.ready + quick.leased + quick.delayed


def test_up_to_ten_thousand_messages_are_counted(conn: Connection, queue: Queue) -> None:
    fill(conn, 10_000 if queue("orders") else 0, one_in=4)
    leased = run(conn, verbs.lease("orders", max_messages=100))
    quick, exact = both(conn)
    assert (quick.depth, quick.ready, quick.leased, quick.delayed) == (10_000, 7400, len(leased), 2500)
    assert (exact.depth, exact.ready, exact.leased, exact.delayed) == (10_000, 7400, len(leased), 2500)
    assert quick.depth_margin == 0


def test_a_long_queue_is_estimated_within_its_margin(conn: Connection, queue: Queue) -> None:
    fill(conn, LONG if queue("orders") else 0)
    quick, exact = both(conn)
    assert exact.depth == LONG
    assert_within_its_margin(quick, exact)
    assert quick.depth_margin < LONG / 10
    assert quick.oldest_age is not None
    assert exact.oldest_age is not None
    assert abs(quick.oldest_age - exact.oldest_age) < timedelta(minutes=1)


def test_what_was_drained_or_deleted_no_longer_counts_in_an_estimate(conn: Connection, queue: Queue) -> None:
    fill(conn, 2 * LONG if queue("orders") else 0)
    conn.execute("DELETE FROM messages.message WHERE id % 2 = 0")
    assert_within_its_margin(*both(conn))
    conn.execute("DELETE FROM messages.message WHERE id < %s", [LONG])
    assert_within_its_margin(*both(conn))


def test_right_after_a_purge_a_queue_is_empty_and_its_neighbour_is_not(conn: Connection, queue: Queue) -> None:
    for name in ("orders_0", "orders_1"):
        queue(name)
    fill(conn, 2 * LONG, queues=2)
    assert run(conn, verbs.purge_queue("orders_0")) == LONG
    (purged,) = run(conn, verbs.status("orders_0"))
    assert (purged.depth, purged.depth_margin, purged.oldest_age) == (0, 0, None)
    assert_within_its_margin(*both(conn, "orders_1"))


def test_an_estimate_knows_all_leases_at_the_head_and_what_is_delayed(conn: Connection, queue: Queue) -> None:
    fill(conn, LONG if queue("orders") else 0, one_in=3)
    leased = run(conn, verbs.lease("orders", max_messages=300))
    quick, exact = both(conn)
    assert_within_its_margin(quick, exact)
    assert quick.leased >= len(leased) == exact.leased
    assert exact.delayed == LONG / 3
    assert abs(quick.delayed - exact.delayed) <= quick.depth_margin


def test_the_oldest_ready_message_of_a_long_queue_is_found_in_any_priority(conn: Connection, queue: Queue) -> None:
    conn.execute("SELECT messages.publish(%s, '{}', priority => 0)", [queue("orders")])
    conn.execute("UPDATE messages.message SET visible_at = visible_at - interval '1 hour'")
    fill(conn)
    (found,) = run(conn, verbs.status("orders"))
    assert found.depth_margin > 0
    assert found.oldest_age is not None
    assert found.oldest_age > timedelta(hours=1)


def test_many_dead_messages_are_estimated_within_their_margin(conn: Connection, queue: Queue) -> None:
    conn.execute(
        "INSERT INTO messages.dead_message (id, archived_at, queue_name, result)"
        " SELECT n, clock_timestamp(), %s, 'failed' FROM generate_series(1, %s) n",
        [queue("orders"), LONG],
    )
    quick, exact = both(conn)
    assert exact.dead == LONG
    assert quick.dead_margin > 0
    assert abs(quick.dead - LONG) <= quick.dead_margin
    assert quick.depth_margin == 0


def test_of_many_queues_each_is_counted_less_far_and_all_are_there(conn: Connection, queue: Queue) -> None:
    names = [queue(f"orders_{number}") for number in range(60)]
    fill(conn, LONG, queues=60)
    run(conn, verbs.publish_batch("orders_7", [1] * 5000))
    found = {one.queue_name: one for one in run(conn, verbs.status())}
    assert set(names) < set(found)
    assert {found[name].depth for name in names if name != "orders_7"} == {LONG / 60}
    assert found["orders_7"].depth_margin > 0
    assert abs(found["orders_7"].depth - 5500) <= found["orders_7"].depth_margin


@pytest.mark.parametrize("exact", [False, True])
def test_the_quick_status_reads_as_much_of_a_queue_of_any_length(conn: Connection, queue: Queue, exact: bool) -> None:
    fill(conn, LONG if queue("orders") else 0)
    before = pages_read(conn, exact=exact)
    fill(conn, 2 * LONG)
    assert (pages_read(conn, exact=exact) < 1.1 * before) is not exact


def pages_read(conn: Connection, *, exact: bool) -> int:
    fetched = "SELECT pg_stat_get_xact_blocks_fetched('messages.message_rows'::regclass)"
    with conn.transaction():
        ((before,),) = conn.execute(fetched).fetchall()
        run(conn, verbs.status("orders", exact=exact))
        ((after,),) = conn.execute(fetched).fetchall()
    return int(after - before)


def test_an_estimate_is_printed_rounded_and_with_a_tilde() -> None:
    assert f"{estimate(1_234_567, 500)}" == "~1230000"
    assert quantity(estimate(1_234_567, 500)) == "~1,230,000 messages"
    assert quantity(estimate(1_234_567, 0)) == "1,234,567 messages"
    assert estimate(1_234_567, 500) == 1_234_567
