"""A handler that leaves the connection of its consumer so that nothing else can use it stops it, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import ConnectionFailed, Consumer, Message, Worker, run, verbs
from airflow_provider_pgqueue.core.tuning import TUNING

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

    with pytest.raises(
        ConnectionFailed, match=r"closed, because its handler left a .* open on it\. Let the handler end"
    ):
        Consumer(queue_name="orders", handle=handle, handler_timeout=limit).drain(own)
    assert own.closed
    # What the handler finished before is in doubt, like after any connection that breaks: it comes again.
    assert run(conn, verbs.status("orders"))[0].leased == 3
    with suppress(psycopg.Error, RuntimeError):
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


def test_a_call_that_hangs_in_a_statement_ends_with_its_time(conn: Connection, connect: Connect, queue: Queue) -> None:
    own, ended = connect(), threading.Event()
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> None:
        try:
            own.execute("SELECT pg_sleep(60)")
        finally:
            ended.set()

    consumer = Consumer(queue_name="orders", handle=handle, handler_timeout=0.3)
    with pytest.raises(ConnectionFailed, match="because a call hangs in it"):
        consumer.drain(own)
    assert ended.wait(20)
    assert own.closed
