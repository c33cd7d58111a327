"""Transactions that do not see what was committed since they began: no message of a group is lost from sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.test_groups import bodies, drained, finish, lease, publish, sweep

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
Late = Callable[[], Connection]

NOTES = "SELECT xmin FROM messages.group_without_head"


@pytest.fixture(params=["repeatable read", "serializable"])
def stricter(request: pytest.FixtureRequest, connect: Connect) -> Connection:
    """A session whose transactions are all of a stricter level, each for itself."""
    conn = connect()
    conn.execute(f"SET default_transaction_isolation = '{request.param}'".encode())
    return conn


def look(conn: Connection) -> None:
    """Begin a transaction, which sees from now on what there is now."""
    conn.execute("BEGIN")
    conn.execute("SELECT count(*) FROM messages.queue")


def test_a_message_that_is_published_behind_a_head_which_is_gone_is_found(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    look(stricter)
    finish(conn, head)
    publish(stricter, "a2")
    run(stricter, verbs.publish("orders", "a3", group_key="a"))
    publish(stricter, "b1", "b2")
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2", "a3"], "b": ["b1", "b2"]}


def test_a_message_that_who_finishes_the_head_does_not_see_is_found(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    look(stricter)
    publish(conn, "a2")
    finish(stricter, head)
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2"]}


def test_a_message_that_a_sweep_does_not_see_is_found_by_the_next(
    conn: Connection, connect: Connect, stricter: Connection, queue: Queue
) -> None:
    publisher = connect(autocommit=False)
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    publish(publisher, "a2")
    finish(conn, head)
    look(stricter)
    publisher.commit()
    sweep(conn)
    assert lease(stricter) == []
    stricter.execute("COMMIT")
    assert drained(conn) == {"a": ["a2"]}


def test_a_session_of_a_stricter_level_works_with_groups_by_itself(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    seen = []
    for names in (("a1", "a2"), ("a3",), ("a4", "b1")):
        publish(stricter, *names)
        for _ in range(3):
            sweep(conn)
            for message in lease(stricter):
                seen.append(message.body)
                finish(stricter, message)
    assert sorted(seen) == ["a1", "a2", "a3", "a4", "b1"]
    assert [body for body in seen if body[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert drained(conn) == {}


def test_late_sweeps_write_nothing_for_groups_that_seem_to_have_ended(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    finish(stricter, lease(stricter)[0])
    noted = conn.execute(NOTES).fetchall()
    assert len(noted) == 1
    for _ in range(2):
        sweep(conn)
        assert lease(stricter) == []
        stricter.execute("SELECT messages.upkeep()")
    assert conn.execute(NOTES).fetchall() == noted
    conn.execute("SELECT messages.upkeep()")
    assert conn.execute(NOTES).fetchall() == []


def test_what_was_published_into_a_queue_that_was_dropped_meanwhile_is_there_in_a_new_one(
    conn: Connection, stricter: Connection, queue: Queue
) -> None:
    queue("orders")
    look(stricter)
    run(conn, verbs.drop_queue("orders"))
    run(stricter, verbs.publish("orders", "late"))
    stricter.execute("COMMIT")
    run(conn, verbs.create_queue("orders"))
    assert bodies(lease(conn)) == ["late"]
