"""A cancelled message: finished for good, by whoever may consume, and not dead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import InvalidArgument, LeaseLost, QueueNotFound
from tests.core.archive.test_history import note
from tests.waiting import until_waiting

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def archived(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT id, result, details, fingerprint FROM messages.message_archive ORDER BY id").fetchall()


def test_what_waits_is_archived_as_cancelled_and_leased_by_nobody(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3]))
    assert run(conn, verbs.cancel("orders", ids[:2], reason="the order was withdrawn")) == ids[:2]
    assert [message.id for message in run(conn, verbs.lease("orders", max_messages=10))] == ids[2:]
    assert archived(conn) == [(id, "cancelled", "the order was withdrawn", None) for id in ids[:2]]
    assert run(conn, verbs.cancel("orders", ids[:2])) == [], "a second call changes nothing"


def test_a_cancelled_message_is_published_again_under_its_dedup_key(conn: Connection, queue: Queue) -> None:
    queue("orders")
    cancelled, kept = run(conn, verbs.publish_batch("orders", [1, 2], dedup_keys=["a", "b"]))
    (done,) = run(conn, verbs.consume("orders"))
    assert done.id == cancelled, "the first is finished"
    leased, waits = run(conn, verbs.publish_batch("orders", [3, 4], dedup_keys=["c", "d"], priority=9))
    run(conn, verbs.lease("orders"))
    assert run(conn, verbs.cancel("orders", [cancelled, leased, waits])) == [leased, waits]
    again = run(conn, verbs.publish_batch("orders", [1, 2, 5, 6], dedup_keys=["a", "b", "c", "d"]))
    assert again[:2] == [cancelled, kept], "what is finished, or was not named, is remembered"
    assert min(again[2:]) > waits
    assert run(conn, verbs.publish("orders", 7, dedup_key="c")) == again[2]


def test_a_cancel_waits_for_whoever_publishes_under_the_key_and_blocks_nobody(connect: Connect, queue: Queue) -> None:
    conn, publisher = connect(), connect(autocommit=False)
    queue("orders")
    id_ = run(conn, verbs.publish("orders", 1, dedup_key="k"))
    assert run(publisher, verbs.publish("orders", 2, dedup_key="k")) == id_, "it has the key now"
    with ThreadPoolExecutor() as pool:
        cancels = pool.submit(run, conn, verbs.cancel("orders", [id_]))
        until_waiting(publisher)
        assert run(publisher, verbs.publish("orders", 3, dedup_key="k", on_conflict="replace")) == id_
        publisher.commit()
        assert cancels.result(10) == [id_]
    assert run(conn, verbs.publish("orders", 4, dedup_key="k")) > id_


def test_whoever_works_on_a_cancelled_message_has_lost_it(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2]))
    leased = run(conn, verbs.lease("orders", max_messages=2))
    token = leased[0].lock_token
    assert run(conn, verbs.cancel("orders", ids[:1])) == ids[:1]
    for call in (verbs.extend(token, ids, lease_for=timedelta(minutes=1)), verbs.archive(token, ids)):
        with pytest.raises(LeaseLost) as lost:
            run(conn, call)
        assert list(lost.value.ids) == ids[:1]
    assert [(id, result) for id, result, *_ in archived(conn)] == [(ids[0], "cancelled"), (ids[1], "success")]


def test_a_cancelled_message_is_not_dead(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    listener = connect()
    listener.execute("LISTEN dead_message")
    ids = run(conn, verbs.publish_batch("orders", [1, 2]))
    (held,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(held.lock_token, [held.id], result="cancelled", details="its customer is gone"))
    run(conn, verbs.cancel("orders", ids))
    assert run(conn, verbs.dead_ids("orders")) == []
    assert run(conn, verbs.dead_causes()) == []
    assert not list(listener.notifies(timeout=0.1))
    assert [one.result for one in run(conn, verbs.message_outcomes(ids, follow_requeues=True))] == ["cancelled"] * 2


def test_the_next_of_the_group_follows_a_cancelled_one(conn: Connection, queue: Queue) -> None:
    queue("orders")
    first, second, third = run(conn, verbs.publish_batch("orders", [1, 2, 3], group_keys=["a", "a", "a"]))
    (held,) = run(conn, verbs.lease("orders", max_messages=10))
    assert held.id == first
    run(conn, verbs.cancel("orders", [first, second]))
    assert [message.id for message in run(conn, verbs.lease("orders", max_messages=10))] == [third]


@pytest.mark.usefixtures("dsn")
def test_the_history_counts_what_was_cancelled_and_not_as_dead(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.maintain())
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3]))
    run(conn, verbs.cancel("orders", ids))
    note(conn)
    rows = run(conn, verbs.queue_history("orders"))
    sums = {name: sum(row[name] or 0 for row in rows) for name in ("arrivals", "completions", "cancelled", "failed")}
    assert sums == {"arrivals": 3, "completions": 3, "cancelled": 3, "failed": 0}


def test_only_messages_of_the_queue_are_cancelled_and_the_audit_says_by_whom(conn: Connection, queue: Queue) -> None:
    queue("orders")
    queue("other")
    mine, theirs = run(conn, verbs.publish("orders", 1)), run(conn, verbs.publish("other", 1))
    assert run(conn, verbs.cancel("orders", [mine, theirs], reason="a test")) == [mine]
    entry = conn.execute(
        "SELECT action, queue_name, arguments, affected FROM messages.audit WHERE action = 'cancel'"
    ).fetchall()
    assert entry == [("cancel", "orders", {"ids": [mine, theirs], "reason": "a test"}, 1)]


def test_errors_name_what_is_wrong(shared: Connection) -> None:
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        run(shared, verbs.cancel("nowhere", [1]))
    with pytest.raises(InvalidArgument, match="10001"):
        run(shared, verbs.cancel("orders", range(1, 10002)))


def test_a_repeatable_read_transaction_cancels_what_it_sees(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    id_ = run(conn, verbs.publish("orders", 1))
    other = connect(autocommit=False)
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("SELECT 1")
    run(conn, verbs.lease("orders"))
    with pytest.raises(psycopg.errors.SerializationFailure):
        other.execute("SELECT messages.cancel('orders', %s)", [[id_]])
