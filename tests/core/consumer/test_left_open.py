"""A handler that leaves the connection of its consumer so that nothing else can use it stops it, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import ConnectionFailed, Consumer, Lease, Message, Worker, run, verbs
from airflow_provider_pgqueue.core.errors import TransactionLeftOpen
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.waiting import until, until_past

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
MANY = "SELECT generate_series(1, 100000)"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TUNING, "longest_call", 0.2)


def leaves_a_stream(conn: Connection, kept: ExitStack) -> None:
    rows = conn.cursor().stream(MANY)
    kept.callback(rows.close)
    next(rows)


def raises_within_a_stream(conn: Connection, kept: ExitStack) -> None:
    rows = conn.cursor().stream(MANY)
    for _ in rows:  # which the traceback keeps
        raise ValueError("bad row")


def leaves_a_copy(conn: Connection, kept: ExitStack) -> None:
    copy = kept.enter_context(conn.cursor().copy(f"COPY ({MANY}) TO STDOUT"))
    next(iter(copy))


def leaves_a_transaction(conn: Connection, kept: ExitStack) -> None:
    kept.enter_context(conn.transaction())


def leaves_a_pipeline(conn: Connection, kept: ExitStack) -> None:
    kept.enter_context(conn.pipeline())
    conn.execute("SELECT 1")


ALL = [leaves_a_stream, raises_within_a_stream, leaves_a_copy, leaves_a_transaction, leaves_a_pipeline]


@pytest.mark.parametrize("leaves", ALL)
@pytest.mark.parametrize("limit", [None, timedelta(seconds=30)])
def test_it_stops_with_the_reason_and_reports_no_success_that_is_not_stored(
    conn: Connection, connect: Connect, queue: Queue, leaves: Callable[..., None], limit: timedelta | None
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1, 2]))
    kept = ExitStack()

    def handle(message: Message) -> None:
        if message.body == 1:
            leaves(own, kept)

    with pytest.raises(ConnectionFailed, match=r"closed, because its handler left a .* on it\. Let the handler end"):
        Consumer(queue_name="orders", handle=handle, handler_timeout=limit).drain(own)
    assert own.closed
    # What the handler finished before is in doubt, like after any connection that breaks: it comes again.
    assert run(conn, verbs.status("orders"))[0].leased == 3
    with suppress(psycopg.Error):
        kept.close()


def test_a_worker_goes_on_over_another_connection_and_counts_the_attempt(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders", backoff_first="0 s", max_attempts=2), [0, 1, 2]))
    worker: Worker
    kept: list[Any] = []

    def handle(message: Message) -> None:
        if message.body == 1:
            own = worker._lease._conn  # type: ignore[union-attr]
            kept.append(own.cursor().stream(MANY))
            next(kept[-1])

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle))
    worker.run(until_empty=True)
    found = conn.execute("SELECT message::int, result, attempts FROM messages.message_archive ORDER BY 1").fetchall()
    assert found[0][:2] == (0, "success")
    assert found[1] == (1, "failed", 2)
    assert found[2][:2] == (2, "success")


def test_a_call_that_hangs_in_a_statement_ends_with_its_time_and_its_neighbours_succeed(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own, ended = connect(), threading.Event()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1, 2]))

    def handle(message: Message) -> None:
        if message.body == 1:
            try:
                own.execute("SELECT pg_sleep(60)")
            finally:
                ended.set()

    consumer = Consumer(queue_name="orders", handle=handle, handler_timeout=0.3)
    assert consumer.drain(own) == {"success": 2, "timed_out": 1}
    assert ended.wait(20)


def test_a_call_that_hangs_in_a_pipeline_costs_its_neighbours_nothing(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own, ended = connect(), threading.Event()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> None:
        if message.body == 0:
            with own.pipeline():
                ended.wait(60)

    with pytest.raises(ConnectionFailed, match="because a call hangs in it"):
        Consumer(queue_name="orders", handle=handle, handler_timeout=0.3).drain(own)
    assert conn.execute("SELECT attempts, last_error FROM messages.message ORDER BY id").fetchall()[1] == (1, None)
    ended.set()


def test_a_thread_that_still_uses_the_connection_gets_an_error_and_frees_no_memory_under_others(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own, errors = connect(), list[Exception]()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def sleep() -> None:
        try:
            own.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=sleep)]

    def handle(message: Message) -> None:
        threads[0].start()
        until(lambda: own.pgconn.transaction_status == TransactionStatus.ACTIVE)

    with pytest.raises(ConnectionFailed, match="left a statement, a stream or a COPY running on it"):
        Consumer(queue_name="orders", handle=handle).drain(own)
    others = [connect() for _ in range(4)]  # which get the memory and the file of the old one
    threads[0].join(20)
    assert [type(error) for error in errors] == [psycopg.OperationalError]
    assert [other.execute("SELECT 1").fetchone() for other in others] == [(1,)] * 4


def test_a_lease_is_renewed_soon_after_a_statement_that_was_shorter(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    """It lasts longer than a third of the lease, so that it is in the way of two renewals."""
    own = connect()
    run(conn, verbs.publish(queue("orders"), 1))

    def handle(message: Message) -> None:
        until_past(conn, message.created_at + timedelta(seconds=1))
        own.execute("SELECT pg_sleep(2.5)")
        until_past(conn, message.created_at + timedelta(seconds=5))
        assert run(conn, verbs.lease("orders")) == []

    assert Consumer(queue_name="orders", handle=handle, lease_for=4.5).drain(own) == {"success": 1}


def test_a_lease_of_its_own_ends_where_a_stream_is_left_open(conn: Connection, connect: Connect, queue: Queue) -> None:
    own = connect()
    run(conn, verbs.publish(queue("orders"), 1))
    lease, kept = Lease(own, run(own, verbs.lease("orders"))), ExitStack()
    lease.__enter__()
    leaves_a_stream(own, kept)
    with pytest.raises(ConnectionFailed):
        lease.__exit__(None, None, None)
    kept.close()


@pytest.mark.parametrize("leaves", [leaves_a_transaction, leaves_a_pipeline, "BEGIN"])
def test_a_lease_of_its_own_reports_no_success_of_a_transaction_that_is_left_open(
    conn: Connection, connect: Connect, queue: Queue, leaves: Any
) -> None:
    own = connect()
    run(conn, verbs.publish(queue("orders"), 1))
    lease, kept = Lease(own, run(own, verbs.lease("orders"))), ExitStack()
    lease.__enter__()
    own.execute("BEGIN") if leaves == "BEGIN" else leaves(own, kept)
    with pytest.raises(TransactionLeftOpen if leaves == "BEGIN" else ConnectionFailed):
        lease.__exit__(None, None, None)
    waiting = conn.execute("SELECT lock_expires_at IS NULL, attempts FROM messages.message").fetchall()
    assert waiting == [(leaves == "BEGIN", 1)]
    with suppress(psycopg.Error):
        kept.close()
