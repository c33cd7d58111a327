"""A signal that raises amid a statement, as the end of execution_timeout does, loses neither messages nor outcomes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from psycopg.types.json import JsonbBinaryLoader

from airflow_provider_pgqueue.core import Consumer, Message, run, verbs
from airflow_provider_pgqueue.core.client import end_statement
from tests.waiting import until, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
LOCK = "SELECT pg_advisory_xact_lock(1)"


class TimeIsOver(BaseException):
    """As AirflowTaskTimeout is one: neither an Exception nor one of the two that the driver knows."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TimeIsOver

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupt() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGALRM)


@contextmanager
def interrupted_by(act: Callable[[], object]) -> Iterator[None]:
    """Expect TimeIsOver, which another thread causes."""
    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(TimeIsOver):
        yield
    thread.join()


def results(conn: Connection) -> dict[Any, str]:
    return dict(conn.execute("SELECT message, result::text FROM messages.message_archive").fetchall())


def left(conn: Connection) -> list[tuple[Any, int, bool]]:
    """Body, attempts, and whether it is leased, of each message in the queue."""
    return conn.execute("SELECT message, attempts, lock_token IS NOT NULL FROM messages.message ORDER BY id").fetchall()


class Late(psycopg.Connection[Any]):
    """A connection whose cancels reach the server after the end of the statement."""

    end: Callable[[], object]

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        self.end()
        super().cancel_safe(timeout=timeout)


@pytest.mark.parametrize("level", [None, psycopg.IsolationLevel.READ_COMMITTED])  # with which it opens transactions
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("table", ["message", "message_archive"])
def test_a_statement_that_waits_is_canceled_and_nothing_is_leased_for_nobody(
    dsn: str, conn: Connection, connect: Connect, queue: Queue, table: str, late: bool, level: Any
) -> None:
    """By the table, it is the lease, or that which settles a batch and leases the next."""
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    blocker, watcher = connect(), connect()
    blocker.execute(f"BEGIN; LOCK TABLE messages.{table} IN EXCLUSIVE MODE".encode())
    began: list[Any] = []
    with Late.connect(dsn, autocommit=True) as own:
        own.isolation_level = level
        pid = own.info.backend_pid

        def is_running(session: Connection) -> bool:
            query = "SELECT FROM pg_stat_activity WHERE pid = %s AND query_start = %s AND state = 'active'"
            return bool(session.execute(query, [pid, *began]).rowcount)

        def end() -> None:
            if late:
                blocker.rollback()
                until(lambda: not is_running(watcher))

        def act() -> None:
            try:
                until_waiting(conn)
                began.extend(*conn.execute("SELECT query_start FROM pg_stat_activity WHERE pid = %s", [pid]))
            finally:
                interrupt()
            try:
                until(lambda: not is_running(conn), 10, what="the end of the statement")
            finally:
                if not late:
                    blocker.rollback()

        own.end = end
        with interrupted_by(act):
            Consumer(queue_name="orders", handle=lambda message: None, batch_size=2).drain(own)
    done = 0 if table == "message" else 2
    assert results(conn) == dict.fromkeys(range(done), "success")
    assert left(conn) == [(body, 0, False) for body in range(done, 4)]


@pytest.mark.parametrize("read_before", [0, 2])
def test_what_was_leased_as_the_signal_came_is_released(
    conn: Connection, connect: Connect, queue: Queue, read_before: int
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    own = connect()
    read: list[Any] = []

    class Interrupting(JsonbBinaryLoader):
        def load(self, data: Any) -> Any:
            if len(read) == read_before:
                interrupt()
            read.append(data)
            return super().load(data)

    own.adapters.register_loader("jsonb", Interrupting)
    with pytest.raises(TimeIsOver):
        Consumer(queue_name="orders", handle=lambda message: None, batch_size=2).drain(own)
    assert results(conn) == dict.fromkeys(range(read_before), "success")
    assert left(conn) == [(body, 0, False) for body in range(read_before, 4)]


@pytest.mark.parametrize("within", [Connection.transaction, lambda conn: nullcontext()])
def test_a_statement_of_the_handler_is_canceled_and_what_was_handled_is_settled(
    conn: Connection, connect: Connect, queue: Queue, within: Callable[[Connection], AbstractContextManager[object]]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(3))))
    own, blocker = connect(), connect()
    blocker.execute(f"BEGIN; {LOCK}".encode())

    def handle(message: Message) -> None:
        with within(own):
            own.execute(LOCK if message.body == 1 else "SELECT")

    def act() -> None:
        try:
            until_waiting(conn)
        finally:
            interrupt()

    with interrupted_by(act):
        Consumer(queue_name="orders", handle=handle).drain(own)
    assert results(conn) == {0: "success"}
    assert left(conn) == [(1, 1, False), (2, 0, False)]


def test_the_statement_of_another_thread_is_not_canceled(conn: Connection, connect: Connect) -> None:
    own, blocker = connect(), connect()
    blocker.execute(f"BEGIN; {LOCK}".encode())
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(own.execute(f"{LOCK}, 5".encode()).fetchone()))
    thread.start()
    until_waiting(conn)
    ending = threading.Thread(target=end_statement, args=[own])
    ending.start()
    ending.join(0.3)  # it waits, and so has no end to wait for
    blocker.rollback()
    for one in (thread, ending):
        one.join()
    assert found == [("", 5)]
