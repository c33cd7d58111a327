"""Transactions that do not see what was committed since they began: no message of a group is lost from sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from tests.core.lease.test_groups import drained, finish, lease, publish
from tests.core.lease.test_marks import bodies, scan_again
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


@pytest.fixture(params=["repeatable read", "serializable"])
def stricter(request: pytest.FixtureRequest, connect: Connect) -> Connection:
    """A session whose transactions are all of a stricter level, each for itself."""
    conn = connect()
    conn.execute(f"SET default_transaction_isolation = '{request.param}'".encode())
    return conn


def begin(conn: Connection) -> None:
    """Begin a transaction, which sees from now on what there is now."""
    conn.execute("BEGIN")
    conn.execute("SELECT count(*) FROM messages.queue")


def test_a_message_that_is_published_behind_a_head_which_is_gone_is_found(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    begin(stricter)
    finish(conn, head)
    publish(stricter, "a2")
    run(stricter, verbs.publish("orders", "a3", group_key="a"))
    publish(stricter, "b1", "b2")
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2", "a3"], "b": ["b1", "b2"]}


def test_a_message_that_was_put_behind_unseen_by_who_finishes_the_head_is_found(
    conn: Connection, connect: Connect, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    begin(stricter)
    publish(conn, "a2")
    assert lease(connect()) == []
    finish(stricter, head)
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2"]}


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_message_that_is_put_behind_a_head_which_is_gone_is_found(
    conn: Connection, stricter: Connection, queue: Queue, ends: str
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    publish(conn, "a2")
    begin(stricter)
    finish(conn, head)
    assert lease(stricter) == []  # still sees a1 leased
    stricter.execute(ends.encode())
    assert drained(conn) == {"a": ["a2"]}


def test_a_message_that_a_look_does_not_see_is_found_by_the_next(
    conn: Connection, connect: Connect, stricter: Connection, queue: Queue
) -> None:
    publisher = connect(autocommit=False)
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    publish(publisher, "a2")
    finish(conn, head)
    begin(stricter)
    publisher.commit()
    scan_again(conn)
    assert lease(stricter) == []
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2"]}


def test_a_message_behind_one_that_is_leased_unseen_is_not_leased_beside_it(
    conn: Connection, connect: Connect, stricter: Connection, queue: Queue
) -> None:
    publisher = connect(autocommit=False)
    queue("orders")
    publish(publisher, "a1")
    publish(conn, "a2")
    begin(stricter)
    publisher.commit()
    (head,) = lease(conn)
    assert head.body == "a1"
    with pytest.raises(ConnectionFailed, match="Repeat the transaction"):
        lease(stricter)
    stricter.execute("ROLLBACK")
    assert lease(stricter) == []
    finish(conn, head)
    assert drained(stricter) == {"a": ["a2"]}


def test_a_session_of_a_stricter_level_works_with_groups_by_itself(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    seen = []
    for names in (("a1", "a2"), ("a3",), ("a4", "b1")):
        publish(stricter, *names)
        for _ in range(3):
            for message in lease(stricter):
                seen.append(message.body)
                finish(stricter, message)
    assert sorted(seen) == ["a1", "a2", "a3", "a4", "b1"]
    assert [body for body in seen if body[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert drained(conn) == {}


def test_what_was_published_into_a_queue_that_was_dropped_meanwhile_is_there_in_a_new_one(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    begin(stricter)
    run(conn, verbs.drop_queue("orders"))
    run(stricter, verbs.publish("orders", "late"))
    stricter.execute("COMMIT")
    run(conn, verbs.create_queue("orders"))
    assert bodies(lease(conn)) == ["late"]


def test_a_place_that_somebody_else_has_got_meanwhile_is_a_reason_to_repeat_the_transaction(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=1, on_dead_head="skip")
    publish(conn, "a1", "a2", "a3")
    (a1,) = lease(conn)
    finish(conn, a1, "failed")

    def no_timer_is_left() -> bool:
        run(conn, verbs.scan(["orders"]))
        return not conn.execute("TABLE messages.timer").rowcount

    until(no_timer_is_left)
    conn.execute("""DELETE FROM messages.message WHERE message = '"a2"'""")
    begin(stricter)  # it sees that the place of the group is free
    run(conn, verbs.requeue_dead("orders"))
    run(conn, verbs.scan(["orders"]))
    assert conn.execute("SELECT message FROM messages.message WHERE place = 1").fetchall() == [("a1",)]
    scan_again(conn)
    with pytest.raises(ConnectionFailed) as error:
        lease(stricter)
    assert isinstance(error.value.__cause__, psycopg.errors.SerializationFailure)
    stricter.execute("ROLLBACK")
    assert drained(conn) == {"a": ["a1", "a3"]}
