"""A consumer that ends early: what was handled is settled, the rest goes back, and the reason is told as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import ConnectionFailed, Consumer, Lease, Message, Success, Worker, run, verbs
from tests.waiting import until_past

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def results(conn: Connection) -> dict[Any, str]:
    return dict(conn.execute("SELECT message, result::text FROM messages.message_archive").fetchall())


def left(conn: Connection) -> list[tuple[Any, int, bool]]:
    """Body, attempts, and whether it is leased, of each message in the queue."""
    return conn.execute("SELECT message, attempts, lock_token IS NOT NULL FROM messages.message ORDER BY id").fetchall()


def test_a_handler_that_ends_the_process_ends_it_also_if_the_connection_breaks(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))

    def handle(message: Message) -> None:
        if message.body == 2:
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", [own.info.backend_pid])
            raise SystemExit(3)

    # A worker would take the error of a lost connection for one that the next connection cures.
    with pytest.raises(SystemExit):
        Consumer(queue_name="orders", handle=handle).drain(own)


@pytest.mark.parametrize("name", ["handle", "handle_batch"])
def test_what_was_leased_before_the_stop_is_not_begun_after_it(conn: Connection, queue: Queue, name: str) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    seen: list[int] = []
    stopping = threading.Event()
    handlers: dict[str, Any] = {
        "handle": lambda message: seen.append(message.body),
        "handle_batch": lambda messages: seen.extend(message.body for message in messages),
    }
    consumer = Consumer(queue_name="orders", batch_size=2, **{name: handlers[name]})
    # By then the next messages are leased.
    counts = consumer.drain(conn, stop=stopping.is_set, on_batch=lambda counts: stopping.set())
    assert seen == [0, 1]
    assert counts == {"success": 2, "released": 2}
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def stopped_inside_the_second(
    conn: Connection, other: Connection, act: Callable[[Lease], None], first: Any = None
) -> dict[str, int]:
    """Drain four messages with a handler that returns `first` for the first, and acts in the second, the last."""
    leases: list[Lease] = []
    stopping = threading.Event()

    def handle(message: Message) -> Any:
        if message.body == 0:
            return first
        act(leases[0])
        stopping.set()
        return None

    run(other, verbs.publish_batch("orders", list(range(4))))
    return Consumer(queue_name="orders", handle=handle).drain(conn, stop=stopping.is_set, on_lease=leases.append)


def test_an_outcome_that_cannot_be_kept_is_given_back_for_with_the_others(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own, other = connect(), connect()
    queue("orders")

    def act(lease: Lease) -> None:
        lease.give_back(other)
        assert left(other) == [(1, 1, True), (2, 0, False), (3, 0, False)]

    counts = stopped_inside_the_second(own, conn, act, first=Success(output="y" * 70_000))
    assert results(conn) == {0: "failed", 1: "success"}
    assert counts == {"failed": 1, "success": 1}
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def test_what_another_thread_could_not_give_back_is_settled_by_the_loop(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own, other = connect(), connect()
    queue("orders")

    def act(lease: Lease) -> None:
        other.close()
        with pytest.raises(ConnectionFailed):
            lease.give_back(other)
        with pytest.raises(ConnectionFailed):
            lease.give_up(other, "told to stop")

    assert stopped_inside_the_second(own, conn, act) == {"success": 2, "released": 2}
    assert results(conn) == {0: "success", 1: "success"}
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def test_a_worker_counts_what_it_handled_before_its_queue_was_paused(dsn: str, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))

    def handle(message: Message) -> None:
        run(conn, verbs.pause_queue("orders"))

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle, batch_size=1))
    assert worker.run(until_empty=True) == {"success": 1}


def test_a_renewal_that_fails_for_an_unknown_reason_is_tried_again(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    other = connect()
    run(conn, verbs.publish(queue("orders"), 1))
    length = timedelta(seconds=1.5)
    messages = run(conn, verbs.lease("orders", lease_for=length))
    other.execute("CREATE SEQUENCE tries")
    other.execute(
        "CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        " IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'odd' USING ERRCODE = 'XX001'; END IF;"
        " RETURN NEW; END $$"
    )
    other.execute(
        "CREATE TRIGGER refuse_once BEFORE UPDATE ON messages.message FOR EACH ROW EXECUTE FUNCTION refuse_once()"
    )
    with Lease(conn, messages, lease_for=length) as lease:
        until_past(other, lease[0].lock_expires_at)
        assert run(other, verbs.lease("orders")) == []
    assert results(other) == {1: "success"}
