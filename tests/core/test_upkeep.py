"""An upkeep costs what there is to do: it calls a sweep and rings only where something lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

LAST = "UPDATE messages.message SET {} WHERE id = (SELECT max(id) FROM messages.message)"
BEHIND = """SELECT clock_timestamp() - messages.stored_moment(low_water) FROM messages.queue_priority
             WHERE queue_name = 'orders'"""


@contextmanager
def counted(conn: Connection) -> Iterator[dict[str, int]]:
    """Count how often sweep_all and ring are called in the block, which is one transaction."""
    calls: dict[str, int] = {}
    statement = """SELECT p.proname, sum(coalesce(pg_stat_get_xact_function_calls(p.oid), 0))::integer FROM pg_proc p
                    WHERE p.pronamespace = 'messages'::regnamespace AND p.proname IN ('sweep_all', 'ring') GROUP BY 1"""
    conn.execute("SET track_functions = 'pl'")
    with conn.transaction():
        before = dict(conn.execute(statement).fetchall())
        yield calls
        calls.update({name: number - before[name] for name, number in conn.execute(statement)})


def test_an_upkeep_leaves_queues_alone_that_are_empty_or_short_and_in_order(conn: Connection, queue: Queue) -> None:
    for number in range(20):
        queue(f"empty_{number}")
    run(conn, verbs.publish(queue("waits"), 1))
    run(conn, verbs.publish(queue("leased"), 1))
    run(conn, verbs.lease("leased"))
    with counted(conn) as calls:
        conn.execute("SELECT messages.upkeep()")
    assert calls == {"sweep_all": 0, "ring": 2}


def test_an_upkeep_sweeps_a_long_queue_whatever_its_head_looks_like(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(200))))
    conn.execute(LAST.format("lock_expires_at = now() - interval '1 s'").encode())
    with counted(conn) as calls:
        done = conn.execute("SELECT messages.upkeep() -> 'freed'").fetchone()
    assert calls["sweep_all"] == 1
    assert done == (1,)


@pytest.mark.parametrize(
    ("change", "freed", "archived"),
    [
        ("lock_expires_at = now() - interval '1 s'", 1, 0),
        ("lock_expires_at = now() - interval '1 s', attempts = 5", 0, 1),
        ("expires_at = now() - interval '1 s'", 0, 1),
        ("lock_expires_at = now() + interval '1 h', expires_at = now() - interval '1 s'", 0, 0),
        ("visible_at = now() + interval '1 h', expires_at = now() - interval '1 s'", 0, 0),
    ],
)
def test_an_upkeep_finds_the_one_message_that_is_over_in_a_short_queue(
    conn: Connection, queue: Queue, change: str, freed: int, archived: int
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(10))))
    conn.execute(LAST.format(change).encode())
    assert conn.execute("SELECT u -> 'freed', u -> 'archived' FROM messages.upkeep() u").fetchone() == (freed, archived)


def test_an_upkeep_lowers_the_mark_to_a_message_that_is_ready_below_it(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    conn.execute(
        "SELECT messages.store_moment(low_water, clock_timestamp() + interval '-1 ms') FROM messages.queue_priority"
    )
    conn.execute("UPDATE messages.message SET visible_at = visible_at - interval '1 h'")
    conn.execute("SELECT messages.upkeep()")
    ((behind,),) = conn.execute(BEHIND).fetchall()
    assert behind > timedelta(minutes=59)


def test_an_upkeep_ends_a_pause_of_notifications_that_a_clock_which_went_back_made_long(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    queue("orders")
    conn.execute("SELECT messages.store_moment('messages.rings_paused_until', now() + interval '1 hour')")
    run(conn, verbs.upkeep())
    listening = connect()
    listening.execute("LISTEN new_message")
    run(conn, verbs.publish("orders", 1))
    assert [notify.channel for notify in listening.notifies(timeout=30, stop_after=1)] == ["new_message"]
