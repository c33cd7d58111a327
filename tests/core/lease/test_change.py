"""A message that is changed while it waits: what it gets, and the place that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import InvalidArgument, MessageTooLarge, QueueNotFound
from tests.core.lease.test_marks import bodies, finish, lease, look_again, look_later
from tests.core.lease.test_timers import HOUR, pass_time, publish
from tests.waiting import heard

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

HALF = HOUR / 2


def change(conn: Connection, *ids: int, **to: Any) -> list[int]:
    return run(conn, verbs.change("orders", ids, **to))


def test_only_what_is_given_is_changed(conn: Connection, queue: Queue) -> None:
    queue("orders")
    given: dict[str, Any] = {"headers": {"h": 1}, "reference": "r", "topic": "t", "expires_in": HOUR}
    id_ = run(conn, verbs.publish("orders", "old", priority=7, **given))
    query = "SELECT message, headers, reference, topic, expires_at, priority, visible_at FROM messages.message"
    before = conn.execute(query).fetchall()[0]
    assert change(conn, id_, body=None) == [id_]
    assert conn.execute(query).fetchall() == [(None, *before[1:])]
    assert change(conn, id_, priority=1) == [id_]
    assert conn.execute(query).fetchall() == [(None, *before[1:5], 1, before[6])]


def test_what_is_leased_or_finished_is_left_as_it_is_and_its_id_is_missing(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = publish(conn, 1, 2, 3)
    finish(conn, lease(conn, 1))
    (held,) = lease(conn, 1)
    assert change(conn, *ids, 4711, priority=9, delay=HOUR, body="new") == ids[2:]
    finish(conn, [held])
    archived = conn.execute("SELECT message, priority FROM messages.message_archive ORDER BY id").fetchall()
    assert archived == [(1, 4), (2, 4)]
    assert lease(conn, 3) == []


def test_of_two_priorities_the_new_one_counts_wherever_leases_look(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = publish(conn, *range(4))
    run(conn, verbs.publish_batch("orders", ["a", "b"], priority=9))
    look_later(conn)
    assert bodies(lease(conn, 1)) == ["a"]  # the mark of that lane is behind the four by now
    assert change(conn, ids[2], ids[1], priority=9) == [ids[1], ids[2]]
    look_later(conn)
    assert bodies(lease(conn, 5)) == [1, 2, "b", 0, 3]


def test_a_priority_that_nobody_used_yet_gets_its_lane(conn: Connection, queue: Queue) -> None:
    queue("orders")
    _, second = publish(conn, 1, 2)
    change(conn, second, priority=8)
    look_later(conn)
    assert bodies(lease(conn, 2)) == [2, 1]


def test_a_delay_ends_in_time_and_the_message_has_its_place_again(conn: Connection, queue: Queue) -> None:
    queue("orders")
    first, *_ = publish(conn, 1, 2, 3)
    change(conn, first, delay=HALF)
    look_later(conn)
    assert bodies(lease(conn, 1, lease_for=2 * HOUR)) == [2]
    pass_time(conn, 1)
    look_again(conn)
    assert bodies(lease(conn, 3)) == [1, 3]


def test_a_delay_of_zero_ends_one_and_keeps_the_place(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "failed", "waits")
    (failed,) = lease(conn, 1)
    run(conn, verbs.release(failed.lock_token, [failed.id], delay=HOUR))
    delayed = run(conn, verbs.publish("orders", "delayed", delay=HOUR))
    assert change(conn, failed.id, delayed, delay=0) == [failed.id, delayed]
    look_later(conn)
    assert bodies(lease(conn, 3)) == ["failed", "waits", "delayed"]


def test_a_delay_is_cut_short_and_prolonged(conn: Connection, queue: Queue) -> None:
    queue("orders")
    short, long = publish(conn, "short", "long")
    change(conn, short, long, delay=HOUR)
    change(conn, short, delay=HALF)
    change(conn, long, visible_at=datetime.now().astimezone() + 2 * HOUR)
    conn.execute("UPDATE messages.timer SET at = at - interval '45 minutes'")
    conn.execute(
        "UPDATE messages.message_rows SET visible_at = visible_at - interval '45 minutes' WHERE due_at IS NOT NULL"
    )
    look_later(conn)
    assert bodies(lease(conn, 2)) == ["short"]


def test_a_message_behind_others_of_its_group_does_not_overtake_them(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3], group_keys=["g"] * 3))
    held = lease(conn, 3)
    assert bodies(held) == [1]
    assert change(conn, *ids, priority=9, body="new") == ids[1:]
    assert change(conn, *ids[1:], delay=0) == ids[1:]
    behind = conn.execute("SELECT id FROM messages.message WHERE visible_at = 'infinity' ORDER BY id").fetchall()
    assert [id_ for (id_,) in behind] == ids[1:]
    assert lease(conn, 3) == []
    finish(conn, held)
    change(conn, ids[2], body=3)
    held = lease(conn, 3)
    assert [message.id for message in held] == [ids[1]]
    finish(conn, held)
    assert bodies(lease(conn, 3)) == [3]


def test_a_delay_of_one_that_waits_behind_others_holds_those_behind_it(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3], group_keys=["g"] * 3))
    held = lease(conn, 3)
    assert change(conn, ids[1], delay=HALF) == [ids[1]]
    finish(conn, held)
    assert lease(conn, 3) == []
    pass_time(conn, 1)
    look_again(conn)
    held = lease(conn, 3)
    assert bodies(held) == [2]
    finish(conn, held)
    assert bodies(lease(conn, 3)) == [3]


def test_whoever_waits_hears_that_a_message_is_ready_sooner(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    id_ = run(conn, verbs.publish("orders", 1, delay=HOUR))
    listener = connect()
    listener.execute("LISTEN new_message")
    change(conn, id_, delay=HALF)
    change(conn, id_, delay=2 * HOUR)
    change(conn, id_, delay=0)
    assert heard(listener) == [str(id_), str(id_)]


def test_errors_name_what_is_wrong_and_change_nothing(conn: Connection, queue: Queue) -> None:
    queue("orders", max_body_bytes=50)
    id_ = run(conn, verbs.publish("orders", 1))
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        run(conn, verbs.change("nowhere", [1], priority=1))
    for to, fix in {
        "nothing is to be changed": {},
        "priority is 10": {"priority": 10},
        "delay is -": {"delay": timedelta(seconds=-1)},
        "both delay and visible_at": {"delay": HOUR, "visible_at": datetime.now().astimezone()},
        "no argument 'reference'": {"reference": "r"},
    }.items():
        with pytest.raises(InvalidArgument, match=to):
            change(conn, id_, **fix)
    with pytest.raises(InvalidArgument, match="10001"):
        change(conn, *range(1, 10002), priority=1)
    with pytest.raises(MessageTooLarge, match="too large for queue 'orders'"):
        change(conn, id_, body="x" * 100)
    assert conn.execute("SELECT message, priority FROM messages.message").fetchall() == [(1, 4)]


def test_the_audit_says_what_was_changed_without_the_body(conn: Connection, queue: Queue) -> None:
    queue("orders")
    queue("other")
    conn.execute("DELETE FROM messages.audit")
    mine, theirs = publish(conn, 1)[0], run(conn, verbs.publish("other", 1))
    assert change(conn, mine, theirs, priority=2, body="CANARY") == [mine]
    assert change(conn, theirs, priority=2) == []
    with conn.transaction():
        run(conn, verbs.act_for("ann"))
        assert change(conn, mine, body="CANARY") == [mine]
    entries = conn.execute("SELECT acting_user, action, queue_name, arguments, affected FROM messages.audit").fetchall()
    assert entries == [
        (None, "change", "orders", {"ids": [mine, theirs], "priority": 2, "body_is_new": True}, 1),
        ("ann", "change", "orders", {"ids": [mine], "body_is_new": True}, 1),
    ]


def test_a_repeatable_read_transaction_changes_what_it_sees(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    (id_,) = publish(conn, 1)
    other = connect(autocommit=False)
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("SELECT 1")
    lease(conn, 1)
    with pytest.raises(psycopg.errors.SerializationFailure):
        other.execute("SELECT messages.change('orders', %s, 9)", [[id_]])
