"""Queues that are dropped and purged while everybody works: each call succeeds or says which queue is gone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import PgQueueError, run, verbs

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
Act = Callable[[Connection, random.Random], object]


def publish(conn: Connection, chance: random.Random) -> None:
    groups = [chance.choice("abcdef") for _ in range(5)]
    run(conn, verbs.publish_batch("orders", range(5), group_keys=groups, priority=chance.randrange(3)))


def publish_once(conn: Connection, chance: random.Random) -> None:
    keys = [str(chance.randrange(20)) for _ in range(5)]
    groups = [chance.choice("abcdef") for _ in range(5)]
    arguments = {"dedup_keys": keys, "group_keys": groups, "on_conflict": chance.choice(["skip", "replace"])}
    run(conn, verbs.publish_batch("orders", range(5), **arguments))


def publish_twice(conn: Connection, chance: random.Random) -> None:
    with conn.transaction():
        run(conn, verbs.ready_queues())
        run(conn, verbs.publish("orders", 1))
        run(conn, verbs.publish("orders", 2, dedup_key=str(chance.randrange(20))))


def handle(conn: Connection, chance: random.Random) -> None:
    leased = run(conn, verbs.lease("orders", max_messages=4))
    for message in leased:
        ids = [message.id]
        match chance.randrange(4):
            case 0:
                run(conn, verbs.release(message.lock_token, ids, delay=timedelta(milliseconds=chance.randrange(2))))
            case 1:
                run(conn, verbs.archive(message.lock_token, ids, result="failed"))
            case _:
                run(conn, verbs.archive(message.lock_token, ids))


def hold_briefly(conn: Connection, chance: random.Random) -> None:
    with conn.transaction():
        leased = run(conn, verbs.lease("orders", max_messages=3, lease_for=timedelta(milliseconds=2)))
        run(conn, verbs.consume("orders"))
        if leased and chance.random() < 0.5:
            run(conn, verbs.extend(leased[0].lock_token, [leased[0].id], lease_for=timedelta(milliseconds=1)))


def revive(conn: Connection, chance: random.Random) -> None:
    if chance.random() < 0.5:
        run(conn, verbs.requeue_dead("orders", max_messages=3))
    elif leased := run(conn, verbs.lease_dead("orders", max_messages=3)):
        run(conn, verbs.dismiss(leased[0].lock_token, [message.id for message in leased], "not needed"))


def govern(conn: Connection, chance: random.Random) -> None:
    run(conn, verbs.alter_queue("orders", on_dead_head=chance.choice(["block", "skip"])))
    run(conn, verbs.alter_queue("orders", max_leased=chance.choice([0, 5])))


def lock_by_hand(conn: Connection, chance: random.Random) -> None:
    with conn.transaction():
        conn.execute("SELECT id FROM messages.message WHERE lock_expires_at IS NULL LIMIT 2 FOR UPDATE SKIP LOCKED")
        conn.execute(
            "UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '2 ms' WHERE id = ANY (ARRAY("
            "SELECT id FROM messages.message WHERE lock_expires_at IS NULL LIMIT 2 FOR UPDATE SKIP LOCKED))"
        )


def look(conn: Connection, _chance: random.Random) -> None:
    run(conn, verbs.status())
    run(conn, verbs.ready_queues())
    run(conn, verbs.scan(["orders"]))


def keep_up(conn: Connection, _chance: random.Random) -> None:
    conn.execute("SELECT messages.maintain()")


def purge(conn: Connection, _chance: random.Random) -> None:
    run(conn, verbs.purge_queue("orders"))


ACTS = [
    publish, publish_once, publish_twice, handle, handle, hold_briefly, revive, govern, lock_by_hand,
    look, keep_up, purge,
]  # fmt: skip


def drop(conn: Connection, ended: Event) -> None:
    """Drop the queue and create it again, many times."""
    try:
        for _ in range(10):
            run(conn, verbs.drop_queue("orders", force=True))
            run(conn, verbs.create_queue("orders", max_attempts=2))
            conn.execute("SELECT pg_sleep(0.02)")  # so that there is something to drop
    finally:
        ended.set()


@pytest.mark.long
def test_a_queue_is_dropped_and_purged_while_everybody_works(connect: Connect, queue: Queue) -> None:
    queue("orders")
    ended = Event()

    def repeat(act: Act, conn: Connection, seed: int) -> Counter[str]:
        chance, found = random.Random(seed), Counter[str]()
        while not ended.is_set():
            try:
                act(conn, chance)
            except PgQueueError as error:
                cause = error.__cause__
                state = getattr(cause, "sqlstate", None) or "PQ"
                found[f"{act.__name__} {state} {'' if state.startswith('PQ') else cause}"] += 1
            except psycopg.Error as error:
                found[f"{act.__name__} {error.sqlstate} {error}"] += 1
            else:
                found[f"{act.__name__} PQ"] += 1
        return found

    sessions = [connect() for _ in ACTS]
    with ThreadPoolExecutor(len(ACTS) + 1) as pool:
        dropping = pool.submit(drop, connect(), ended)
        results = list(pool.map(repeat, ACTS, sessions, range(len(ACTS))))
    dropping.result()
    unexpected = {what: number for result in results for what, number in result.items() if " PQ" not in what}
    assert unexpected == {}
    assert all(result[f"{act.__name__} PQ"] for act, result in zip(ACTS, results, strict=True))


def test_a_due_timer_of_a_group_does_nothing_after_its_queue_was_dropped(shared: Connection) -> None:
    """The session that took the timer may read the policy of the queue after another session has dropped it."""
    row = shared.execute("SELECT messages.next_of_groups('dropped', '{a}')").fetchone()
    assert row == ([],)
    assert shared.execute("SELECT count(*) FROM messages.timer WHERE group_key = 'a'").fetchone() == (0,)


def test_a_drop_does_not_wait_with_everybody_behind_it_for_whoever_has_taken_a_timer(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    """Who has taken it may next need the messages, which the drop has locked: each would wait for the other."""
    run(conn, verbs.publish(queue("orders"), 1, group_key="a"))
    conn.execute("DELETE FROM messages.message")
    holder = connect(autocommit=False)
    run(holder, verbs.maintain())
    assert conn.execute("SELECT FROM messages.timer FOR UPDATE SKIP LOCKED").rowcount == 0
    with conn.transaction():
        conn.execute("LOCK TABLE messages.message_rows IN EXCLUSIVE MODE NOWAIT")
    conn.execute("SET statement_timeout = '5s'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("SELECT messages.delete_queue('orders', true)")
    holder.rollback()
    assert run(conn, verbs.drop_queue("orders", force=True)) == 0
