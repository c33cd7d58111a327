"""What the server refuses now and may do later: named with its fix, tried again by those who stay, lost by nobody."""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    Consumer,
    InvalidArgument,
    Message,
    Worker,
    run,
    verbs,
)
from airflow_provider_pgqueue.core import connect as connect_
from airflow_provider_pgqueue.core.connection import parameters
from airflow_provider_pgqueue.core.errors import MessageTooLarge, translate
from tests.core.consumer.test_worker import working
from tests.waiting import until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def set_read_only(conn: Connection, value: str) -> None:
    """Make new sessions of this database read-only, as those of a standby are, or writable again."""
    name = sql.Identifier(conn.info.dbname)
    conn.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, sql.SQL(value)))


def cut(conn: Connection, application_name: str) -> int:
    return conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s",
        [application_name],
    ).rowcount


def archived(conn: Connection) -> int:
    return conn.execute("SELECT FROM messages.message_archive").rowcount


def test_a_worker_waits_for_a_server_that_can_write(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    set_read_only(conn, "on")
    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=lambda message: None))

    def refused() -> list[float]:
        texts = [record.getMessage() for record in caplog.records if "the server is read-only" in record.getMessage()]
        assert all("target_session_attrs=read-write; next try" in text for text in texts)
        return [float(found[1]) for text in texts if (found := re.search(r"next try in ([\d.]+) s", text))]

    with working(worker):
        until(lambda: len(refused()) >= 3, what="three tries")
        set_read_only(conn, "off")
        until(lambda: archived(conn), what="the message to be archived")
    assert refused()[2] >= 1.0  # the pauses grow, although each try connects
    assert "lost the connection" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ("25006", "target_session_attrs"),
        ("25P03", "idle_in_transaction_session_timeout"),
        ("25P04", "transaction_timeout"),
        ("40001", "default_transaction_isolation"),
        ("40P01", "deadlock"),
        ("53200", "its log"),
        ("55P03", "lock_timeout"),
        ("57014", "statement_timeout"),
        ("57P05", "idle_session_timeout"),
    ],
)
def test_a_state_that_passes_names_its_fix(conn: Connection, state: str, named: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        conn.execute(f"DO $$ BEGIN RAISE 'so it is' USING ERRCODE = '{state}', DETAIL = 'a body'; END $$".encode())
    known = translate(raised.value)
    assert isinstance(known, ConnectionFailed)
    assert named in str(known)
    assert "Check the connection" not in str(known)
    assert "a body" not in str(known)


@pytest.fixture
def quoting_dsn(dsn: str, conn: Connection) -> str:
    """A database whose errors quote the parameters of the statement."""
    database = sql.Identifier(conn.info.dbname)
    conn.execute(sql.SQL("ALTER DATABASE {} SET log_parameter_max_length_on_error = -1").format(database))
    return dsn


def test_neither_an_error_nor_its_cause_quotes_a_body(quoting_dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders", max_body_bytes=20)
    with connect_(quoting_dsn) as publisher, pytest.raises(MessageTooLarge) as raised:
        run(publisher, verbs.publish("orders", "the card number 1234"))
    cause = raised.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert "1234" in (cause.diag.context or "")
    assert "1234" not in "".join(traceback.format_exception(raised.value, limit=0))


def test_a_session_that_is_ended_amid_a_publish_quotes_neither_body_nor_statement(
    quoting_dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    with connect_(quoting_dsn, application_name="cut") as publisher, conn.transaction():
        conn.execute("LOCK TABLE messages.message")
        publishing = ThreadPoolExecutor(1).submit(run, publisher, verbs.publish("orders", "the card number 1234"))
        until(lambda: conn.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
        cut(conn, "cut")
        error = publishing.exception(30)
    assert isinstance(error, ConnectionFailed)
    assert "1234" not in "".join(traceback.format_exception(error, limit=0))
    assert "INSERT" not in str(error)


@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout"])
def test_a_publisher_that_waits_is_told_what_to_set(dsn: str, conn: Connection, queue: Queue, name: str) -> None:
    queue("orders")
    with connect_(dsn) as publisher, conn.transaction():
        conn.execute("LOCK TABLE messages.message")
        publisher.execute(f"SET {name} = '50ms'".encode())
        with pytest.raises(ConnectionFailed, match=name):
            run(publisher, verbs.publish("orders", 1))
    assert run(conn, verbs.status("orders"))[0].depth == 0


def test_a_session_that_idles_too_long_is_told_the_setting(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    with connect_(dsn, application_name="idler") as idler:
        idler.execute("SET idle_session_timeout = '50ms'")
        until(lambda: not conn.execute("SELECT FROM pg_stat_activity WHERE application_name = 'idler'").rowcount)
        with pytest.raises(ConnectionFailed, match="idle_session_timeout"):
            run(idler, verbs.publish("orders", 1))


def test_a_worker_that_exceeds_a_time_limit_does_not_call_it_a_lost_connection(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    limited = f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20lock_timeout%3D50ms"
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    worker = Worker(conninfo=limited, consumer=consumer)
    with conn.transaction():
        conn.execute("LOCK TABLE messages.message")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until(lambda: "raise lock_timeout" in caplog.text)
        except BaseException:
            worker.stop()
            raise
    until(lambda: archived(conn))
    worker.stop()
    thread.join(30)
    assert "lost the connection" not in caplog.text


def test_a_worker_outlives_a_transaction_that_has_its_message(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    conn.execute("ALTER FUNCTION messages.archive SET lock_timeout = '200ms'")  # instead of three seconds, thrice
    with psycopg.connect(dsn) as holder:

        def hold(message: Message) -> None:
            holder.execute("SELECT FROM messages.message_rows WHERE id = %s FOR UPDATE", [message.id])

        with working(Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=hold))) as worker:
            until(lambda: "raise lock_timeout" in caplog.text)
            holder.rollback()
            until(lambda: archived(conn))
    assert worker.counts == {"success": 1}


def test_a_connection_lost_with_a_batch_in_hand_is_a_line_each(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=lambda message: handle(message)))

    def handle(message: Message) -> None:
        assert cut(conn, "pgqueue worker")
        worker.stop()

    worker.run(until_empty=True)
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in records] == [None] * len(records)
    texts = [record.getMessage() for record in records]
    assert sum("could not release 2 messages after ConnectionFailed" in text for text in texts) == 1, texts
    assert "Lease for longer" not in caplog.text


@pytest.mark.parametrize("said", ["-1", "5.0", "", "''", "x"])
@pytest.mark.parametrize("form", ["host=db prepare_threshold={}", "postgresql://db/shop?prepare_threshold={}"])
def test_a_bad_prepare_threshold_is_named(said: str, form: str) -> None:
    with pytest.raises(InvalidArgument, match=r"prepare_threshold is .*Give a whole number from 0, or none"):
        parameters(form.format(said))


@pytest.mark.parametrize(
    "dsn",
    ["prepare_threshold=5 prepare_threshold=none", "postgresql://db/shop?prepare_threshold=5&prepare_threshold=5"],
)
def test_a_prepare_threshold_given_twice_is_named(dsn: str) -> None:
    with pytest.raises(InvalidArgument, match=r"prepare_threshold is given 2 times\. Give it once"):
        parameters(dsn)
