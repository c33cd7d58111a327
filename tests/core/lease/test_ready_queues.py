"""What `ready_queues` counts is what `lease` would get."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.message import ReadyQueue
from tests.waiting import until_leases_expire

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def ready(conn: Connection) -> ReadyQueue | None:
    rows = run(conn, verbs.ready_queues(["orders"]))
    return rows[0] if rows else None


def test_where_nothing_comes_later_nobody_is_told_to_look_again(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    found = ready(conn)
    assert (found.ready, found.next_in) == (1, None)


def test_a_question_changes_nothing_and_a_scan_ends_what_is_due(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    run(conn, verbs.publish(queue("orders"), 1, group_key="a"))
    assert len(run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=1)))) == 1
    until_leases_expire(conn)
    reader = connect()
    reader.execute("SET default_transaction_read_only = on")
    assert (ready(reader).ready, ready(reader).next_in) == (0, timedelta(milliseconds=10)), "somebody has to scan"
    with conn.transaction():
        assert ready(conn).ready == 0
        assert run(conn, verbs.run_backlog("", "orders"))["waiting"] == 0
        assert conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    (found,) = run(conn, verbs.scan(["orders"]))
    assert found.ready == 1
    assert ready(reader).ready == 1


def test_a_scan_of_no_queue_and_of_one_that_is_unknown_finds_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    assert run(conn, verbs.scan([])) == run(conn, verbs.scan(["bills"])) == []
    assert conn.execute("SELECT FROM messages.scan(NULL)").rowcount == 0


def test_a_queue_with_as_many_leases_as_it_may_have_has_none_ready_and_is_looked_at_soon(
    conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_leased=3), list(range(10))))
    found = ready(conn)
    assert found.ready == 3
    leased = run(conn, verbs.lease("orders", max_messages=2))
    found = ready(conn)
    assert found.ready == 1
    assert timedelta(minutes=4) < found.next_in < timedelta(minutes=5), "a lease ends then"
    run(conn, verbs.lease("orders", max_messages=2))
    found = ready(conn)
    assert (found.ready, found.next_in) == (0, timedelta(seconds=1))
    assert found.oldest_age is not None, "health sees that they wait"
    run(conn, verbs.archive(leased[0].lock_token, [leased[0].id]))
    found = ready(conn)
    assert found.ready == 1


def test_the_topics_of_what_is_ready_are_named_once_and_at_most_twenty(conn: Connection, queue: Queue) -> None:
    topics = ["shop.order", None, "mail", "shop.order"]
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3, 4], topics=topics))
    run(conn, verbs.publish("orders", 5, topic="urgent", priority=9))
    run(conn, verbs.publish("orders", 6, topic="later", delay=timedelta(hours=1)))
    found = ready(conn)
    assert found.topics == ["mail", "shop.order", "urgent"]
    run(conn, verbs.lease("orders", max_messages=9))
    found = ready(conn)
    assert found.topics == []
    run(conn, verbs.publish_batch("orders", list(range(60)), topics=[f"t{n % 30}" for n in range(60)]))
    found = ready(conn)
    assert (len(found.topics), len(set(found.topics))) == (20, 20)


def test_a_name_that_no_queue_has_and_a_paused_queue_are_closed(conn: Connection, queue: Queue) -> None:
    closed = run(conn, verbs.closed_queues([queue("orders"), "mail", "Orders", queue("bills", paused=True), ""]))
    assert [(one.queue_name, one.paused) for one in closed] == [
        ("mail", False), ("Orders", False), ("bills", True), ("", False)
    ]  # fmt: skip
    assert run(conn, verbs.closed_queues([])) == []


def test_marks_are_read_once_and_not_for_each_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(200))))
    conn.execute("SET track_functions = 'all'")
    calls = """SELECT sum(coalesce(pg_stat_get_xact_function_calls(p.oid), 0)) FROM pg_proc p
                WHERE p.pronamespace = 'messages'::regnamespace AND p.proname = 'stored_time'"""
    with conn.transaction():
        ((before,),) = conn.execute(calls).fetchall()
        found = ready(conn)
        ((after,),) = conn.execute(calls).fetchall()
    assert found.ready == 200
    assert 1 <= after - before <= 20, "ten lanes, and a scan"
