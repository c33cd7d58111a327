"""Batches that are locked for a transaction instead of leased: nobody else gets them, and a death is an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound, QueuePaused, run, verbs
from airflow_provider_pgqueue.core.errors import translate
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def lock(conn: Connection, count: int = 10, *, recorder: Connection | None = None) -> tuple[UUID, list[int]]:
    """Lock messages in the transaction of `conn`, which it begins, and record them in another session."""
    if conn.autocommit and conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        conn.execute("BEGIN")
    rows = conn.execute("SELECT lock_token, id FROM messages.lock_ready('orders', %s)", [count]).fetchall()
    token, ids = rows[0][0], [id_ for _, id_ in rows]
    if recorder is not None:
        run(recorder, verbs.record_locked_batch(token, "orders", ids, "packer"))
    return token, ids


def kill(conn: Connection, victim: Connection) -> None:
    pid = victim.info.backend_pid
    conn.execute("SELECT pg_terminate_backend(%s)", [pid])
    until(lambda: not conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount)


def attempts(conn: Connection) -> list[tuple[int, int]]:
    return conn.execute("SELECT message::integer, attempts FROM messages.message ORDER BY message").fetchall()


def archived(conn: Connection) -> list[Any]:
    rows = conn.execute("SELECT message, result, attempts, handled_by FROM messages.message_archive ORDER BY message")
    return rows.fetchall()


def batches(conn: Connection) -> int:
    return conn.execute("SELECT FROM messages.locked_batch").rowcount


def test_what_is_locked_is_passed_over_by_others_and_archived_in_the_same_transaction(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(5)))
    locking, other = connect(), connect()
    token, ids = lock(locking, 2, recorder=conn)
    _, more = lock(other, 2)
    assert not set(ids) & set(more)
    assert [message.body for message in run(conn, verbs.lease("orders", max_messages=5))] == [4]
    assert run(locking, verbs.archive_rows(token, ids, results=["success", "rejected"], handled_by="packer")) == []
    assert archived(conn) == []
    locking.execute("COMMIT")
    assert archived(conn) == [(0, "success", 1, "packer"), (1, "rejected", 1, "packer")]
    assert batches(conn) == 0
    moments = conn.execute("SELECT FROM messages.message_archive WHERE leased_at BETWEEN created_at AND archived_at")
    assert moments.rowcount == 2


def test_a_message_is_locked_once_in_a_call(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(3), priority=1))
    run(conn, verbs.publish_batch("orders", range(3)))
    with conn.transaction():
        _, ids = lock(conn, 10)
        assert len(ids) == len(set(ids)) == 6


def test_a_rollback_makes_messages_ready_at_once_and_is_no_attempt(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(2)))
    locking = connect()
    token, _ = lock(locking, recorder=conn)
    assert run(conn, verbs.free_locked_batches("orders", lock_token=token)) == 1
    locking.execute("ROLLBACK")
    assert run(conn, verbs.free_locked_batches("orders")) == 0
    assert attempts(conn) == [(0, 0), (1, 0)]
    assert len(run(conn, verbs.lease("orders", max_messages=5))) == 2


def test_a_death_is_an_attempt_and_costs_no_wait(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders", lease_for="1 hour", max_attempts=3)
    run(conn, verbs.publish_batch("orders", range(4)))
    for death in (1, 2):
        locking = connect()
        lock(locking, 2, recorder=conn)
        assert run(conn, verbs.free_locked_batches("orders")) == 0
        kill(conn, locking)
        assert run(conn, verbs.free_locked_batches("orders")) == 1
        assert attempts(conn) == [(0, death), (1, death), (2, 0), (3, 0)]
        leased = run(conn, verbs.lease("orders", max_messages=10))
        assert len(leased) == 4
        run(conn, verbs.release(leased[0].lock_token, [m.id for m in leased], count_attempt=False))  # type: ignore[arg-type]
    locking = connect()
    lock(locking, 2, recorder=conn)
    kill(conn, locking)
    run(conn, verbs.free_locked_batches("orders"))
    assert [message.body for message in run(conn, verbs.lease("orders", max_messages=10))] == [2, 3]
    assert archived(conn) == [(0, "lock_expired", 3, "packer"), (1, "lock_expired", 3, "packer")]


def test_a_death_is_counted_once_those_who_took_over_are_done(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(2)))
    first, second = connect(), connect()
    lock(first, recorder=conn)
    kill(conn, first)
    lock(second, recorder=conn)
    assert run(conn, verbs.free_locked_batches("orders")) == 0
    kill(conn, second)
    assert run(conn, verbs.free_locked_batches("orders")) == 2
    assert attempts(conn) == [(0, 2), (1, 2)]


def test_a_death_that_came_after_the_commit_changes_nothing(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(2)))
    locking = connect()
    token, ids = lock(locking, recorder=conn)
    run(locking, verbs.archive_rows(token, ids))
    locking.execute("COMMIT")
    kill(conn, locking)
    assert run(conn, verbs.free_locked_batches("orders")) == 0
    assert [result for _, result, *_ in archived(conn)] == ["success", "success"]


def test_upkeep_ends_the_batches_of_the_dead_also_of_a_queue_that_is_gone(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 0))
    locking = connect()
    lock(locking, recorder=conn)
    kill(conn, locking)
    conn.execute("INSERT INTO messages.locked_batch SELECT gen_random_uuid(), 'gone', '{1}', 'packer'")
    conn.execute("SELECT messages.upkeep()")
    assert batches(conn) == 0
    assert attempts(conn) == [(0, 1)]


def test_a_group_goes_on_in_order(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(4), group_keys=["a"] * 4))
    for number in range(4):
        locking = connect()
        token, ids = lock(locking, recorder=conn)
        assert len(ids) == 1
        assert run(conn, verbs.lease("orders")) == []
        run(locking, verbs.archive_rows(token, ids))
        locking.execute("COMMIT")
        assert [body for body, *_ in archived(conn)] == list(range(number + 1))


def test_only_ready_messages_of_its_queue_are_archived_under_the_token_of_a_batch(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    queue("parcels")
    run(conn, verbs.publish_batch("orders", range(2)))
    strange = run(conn, verbs.publish("parcels", "strange"))
    (leased,) = run(conn, verbs.lease("orders"))
    locking = connect()
    token, ids = lock(locking, recorder=conn)
    lost = run(locking, verbs.archive_rows(token, [*ids, leased.id, strange]))
    locking.execute("COMMIT")
    assert sorted(lost) == sorted([leased.id, strange])
    assert [body for body, *_ in archived(conn)] == [1]


@pytest.mark.parametrize(
    ("arrange", "error", "text"),
    [
        ("SELECT messages.alter_queue('orders', max_leased => 5)", InvalidArgument, "max_leased of 5"),
        ("SELECT messages.pause_queue('orders')", QueuePaused, "'orders'"),
        ("SELECT messages.drop_queue('orders', force => true)", QueueNotFound, "'orders'"),
    ],
)
def test_what_cannot_be_locked_is_said(
    conn: Connection, queue: Queue, arrange: str, error: type[Exception], text: str
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    conn.execute(arrange.encode())
    with pytest.raises(psycopg.Error) as refused:
        conn.execute("SELECT messages.lock_ready('orders')")
    assert isinstance(translate(refused.value), error)
    assert text in str(refused.value)


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_locked_counts_as_leased(conn: Connection, connect: Connect, queue: Queue, exact: bool) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(5)))
    locking = connect()
    token, ids = lock(locking, 5, recorder=conn)
    (status,) = run(conn, verbs.status("orders", exact=exact))
    assert (status.depth, status.ready, status.leased, status.oldest_age) == (5, 0, 5, None)
    run(locking, verbs.archive_rows(token, ids[:2], handled_by="packer"))
    locking.execute("COMMIT")
    (status,) = run(conn, verbs.status("orders", exact=exact))
    assert (status.depth, status.ready, status.leased) == (3, 3, 0)
