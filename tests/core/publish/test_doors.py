"""One row that plain SQL writes holds up nobody: it is refused at the door, or what it does stays with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import MessageTooLarge
from airflow_provider_pgqueue.core.message import TEXTS
from tests.waiting import until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

LONG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 200) g)"
INSERTED = "INSERT INTO messages.message (queue_name, message, {}) VALUES ('orders', '1', {})"
ARCHIVED = (
    "INSERT INTO messages.message_archive (created_at, queue_name, result, message, {}) VALUES (now(), {}, '1', {})"
)
OURS = "UPDATE messages.message SET {} WHERE message = '\"ours\"'"

# What a publisher gives, in a text that is too short or too long.
TOO_LONG = "repeat('x', 3000)"
GIVEN = [(name, value) for name in TEXTS for value in ("''", TOO_LONG) if (name, value) != ("reference", "''")]
REFUSED = [
    *(INSERTED.format(name, value) for name, value in GIVEN),
    *(OURS.format(f"{name} = {value}") for name, value in GIVEN),
    *(ARCHIVED.format(name, "'orders', 'failed'", value) for name, value in GIVEN),
    INSERTED.format("leased_at", "'infinity'"),
    INSERTED.format("lock_expires_at", "'infinity'"),
    INSERTED.format("expires_at", "'-infinity'"),
    INSERTED.format("due_at", "'infinity'"),
    INSERTED.format("id", "1000000"),
    INSERTED.format("id", "-1"),
    INSERTED.format("locked_by", LONG),
    INSERTED.format("topic", "'shop eu'"),
    *(
        OURS.format(change)
        for change in (
            "id = -id, visible_at = '-infinity'",
            "id = -id, priority = 77",
            "lock_expires_at = '-infinity'",
            "lock_expires_at = 'infinity'",
            "due_at = '294276-12-31'",
            "expires_at = '294276-12-31'",
            "leased_at = 'infinity'",
            "headers = '[1]'",
            "priority = 77",
            "queue_name = 'nope'",
            f"locked_by = {LONG}",
            "topic = 'shop..eu'",
        )
    ),
    ARCHIVED.format("archived_at", "'orders', 'failed'", "'infinity'"),
    ARCHIVED.format("leased_at", "'orders', 'failed'", "'-infinity'"),
    ARCHIVED.format("handled_by", f"{LONG}, 'success'", "NULL"),
    ARCHIVED.format("fingerprint", "'orders', 'lock_expired'", f"left({LONG}, 2600)"),
    ARCHIVED.format("handled_by", "'orders', 'success'", LONG),
    ARCHIVED.format("headers", "'orders', 'failed'", "'[]'"),
    ARCHIVED.format("topic", "'orders', 'failed'", "'shop eu'"),
    ARCHIVED.format("priority", "'orders', 'failed'", "77"),
    ARCHIVED.format("id", "'orders', 'success'", "9223372036854775807"),
    ARCHIVED.format("priority", "'', 'failed'", "4"),
    ARCHIVED.format("handled_by", "'orders', 'done'", "NULL"),
]


@pytest.mark.parametrize("statement", REFUSED)
def test_what_would_stop_others_is_refused(shared: Connection, statement: str) -> None:
    with shared.transaction(force_rollback=True):
        run(shared, verbs.publish("orders", "ours"))
        with pytest.raises(psycopg.Error) as refused, shared.transaction():
            shared.execute(statement.encode())
        assert refused.value.sqlstate in ("23514", "PQ001", "PQ004")
        assert [message.body for message in run(shared, verbs.lease("orders", max_messages=9))] == ["ours"]


def test_a_message_that_was_leased_in_the_future_is_leased_now(conn: Connection, queue: Queue) -> None:
    """As after the clock of the server went back."""
    queue("orders")
    conn.execute(INSERTED.format("leased_at", "'9999-01-01'").encode())
    run(conn, verbs.publish("orders", 2))
    assert [run(conn, verbs.lease("orders"))[0].body for _ in range(2)] == [1, 2]


def test_a_message_that_is_inserted_under_a_lock_comes_back_at_its_end(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute(INSERTED.format("lock_expires_at", "clock_timestamp() + interval '0.2 s'").encode())
    assert run(conn, verbs.lease("orders")) == []
    until(lambda: run(conn, verbs.lease("orders")), what="the end of the lock")


def test_a_leased_message_that_is_moved_to_another_queue_stops_neither(conn: Connection, queue: Queue) -> None:
    queue("orders")
    queue("returns", max_attempts=1)
    run(conn, verbs.publish_batch("orders", range(4), group_keys=["a", "a", "b", "b"]))
    first, second = run(conn, verbs.lease("orders", max_messages=2))
    conn.execute("UPDATE messages.message SET queue_name = 'returns' WHERE id = %s", [first.id])
    (next_one,) = until(lambda: run(conn, verbs.lease("orders")))
    assert next_one.body == 1
    archive = "SELECT messages.archive(%s, %s)"
    assert conn.execute(archive, [second.lock_token, [first.id, second.id]]).fetchall() == [(second.id,)]
    (moved,) = until(lambda: run(conn, verbs.lease("returns")))
    assert moved.id == first.id
    assert run(conn, verbs.archive(moved.lock_token, [moved.id])) == [moved.id]


def test_a_message_that_was_requeued_often_is_requeued_again(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute(ARCHIVED.format("requeues", "'orders', 'failed'", "32767").encode())
    conn.execute(ARCHIVED.format("requeues", "'orders', 'failed'", "0").encode())
    assert len(run(conn, verbs.requeue_dead("orders", max_messages=9))) == 2


def test_a_message_that_repeats_itself_has_an_outcome(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute("SET statement_timeout = '5 s'")
    circle = ARCHIVED.format("id, resolution, requeued_as", "'orders', 'failed'", "-5, 'requeued', -5")
    conn.execute(circle.encode())
    ((last,),) = conn.execute("SELECT last_id FROM messages.message_outcomes(ARRAY[-5], true)").fetchall()
    assert last == -5


def test_a_dead_message_that_was_larger_than_is_allowed_now_keeps_no_other_from_being_requeued(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=1)
    large, small = run(conn, verbs.publish_batch("orders", ["x" * 2000, "small"]))
    leased = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(leased[0].lock_token, [large, small], result="failed"))
    run(conn, verbs.alter_queue("orders", max_body_bytes=1000))
    # A new body and another message are measured.
    with pytest.raises(MessageTooLarge):
        run(conn, verbs.requeue_dead("orders", bodies={large: "y" * 2000}))
    with pytest.raises(psycopg.Error, match="too large"):
        conn.execute(INSERTED.replace("'1'", "to_jsonb(repeat('y', 2000))").format("requeued_from", large).encode())
    assert {one.id for one in run(conn, verbs.requeue_dead("orders"))} == {large, small}
    conn.execute("UPDATE messages.message SET priority = 9")
    assert {message.body for message in run(conn, verbs.lease("orders", max_messages=2))} == {"x" * 2000, "small"}


def test_an_archived_message_of_no_queue_is_history_and_keeps_no_other_from_being_requeued(
    conn: Connection, queue: Queue
) -> None:
    queue("orders")
    for of in ("Bad Name", "dropped", "orders"):
        conn.execute(ARCHIVED.format("reference", f"'{of}', 'failed'", "'cart 7'").encode())
    (requeued,) = run(conn, verbs.requeue_dead(verbs.DeadFilter(reference="cart 7")))
    assert conn.execute("SELECT queue_name FROM messages.message").fetchall() == [("orders",)]
    assert run(conn, verbs.dead_ids()) == []
    assert requeued.new_id > requeued.id
