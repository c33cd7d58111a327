"""Counting how messages ended, by ids and by reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, Message, QueueNotFound, Rejected, run, verbs

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def counts(conn: Connection, *ids: Any, **chosen: Any) -> dict[str | None, int]:
    return {row.result: row.number for row in run(conn, verbs.outcome_counts(*ids, **chosen))}


def drain(conn: Connection, queue_name: str = "orders") -> None:
    def handle(message: Message) -> Rejected | None:
        return Rejected("no") if message.body == "bad" else None

    Consumer(queue_name=queue_name, handle=handle).drain(conn)


def publish(conn: Connection, bodies: list[Any], reference: str = "monday", queue_name: str = "orders") -> list[int]:
    return run(conn, verbs.publish_batch(queue_name, bodies, references=[reference] * len(bodies)))


def test_messages_are_counted_by_result_and_those_that_are_not_finished_apart(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = publish(conn, [1, "bad", 2])
    publish(conn, [1], reference="tuesday")
    assert counts(conn, ids) == counts(conn, reference="monday") == {None: 3}
    drain(conn)
    publish(conn, [4])
    assert counts(conn, [*ids, *ids, 4711]) == {"success": 2, "rejected": 1, "unknown": 1}
    assert counts(conn, reference="monday") == {"success": 2, "rejected": 1, None: 1}
    assert counts(conn, reference="wednesday") == counts(conn, []) == {}


def test_a_requeued_message_counts_as_the_one_that_repeats_it(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = publish(conn, ["bad", 1])
    drain(conn)
    assert counts(conn, reference="monday", follow_requeues=True) == {None: 1, "success": 1}
    conn.execute("SELECT messages.requeue_dead('orders', results => ARRAY['rejected'])")
    assert counts(conn, reference="monday") == {None: 1, "success": 1}
    conn.execute("UPDATE messages.message SET message = '1'")
    drain(conn)
    assert counts(conn, reference="monday") == counts(conn, ids, follow_requeues=True) == {"success": 2}
    assert counts(conn, ids) == {"rejected": 1, "success": 1}


def test_a_reference_is_counted_in_one_queue_or_in_all(conn: Connection, queue: Queue) -> None:
    for name in ("orders", "mails"):
        publish(conn, [1, 2], queue_name=queue(name))
    assert counts(conn, reference="monday") == {None: 4}
    assert counts(conn, reference="monday", queue_name="mails") == {None: 2}
    with pytest.raises(QueueNotFound):
        counts(conn, reference="monday", queue_name="mail")
