"""A path that goes silent: a NAT or a proxy that forgot a connection says nothing, and swallows what comes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgqueue.core import Consumer, Message, Worker, run, verbs
from airflow_provider_pgqueue.core.connection import connect
from airflow_provider_pgqueue.core.deadline import obeying
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.waiting import until, until_waiting

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


class Path:
    """A proxy that can swallow what goes through it, on the connections that are open or on all."""

    def __init__(self, dsn: str) -> None:
        self._server = conninfo_to_dict(dsn)
        self._silent_until = -1.0
        self.swallow: bytes | None = None
        """What a client sends last; from then on its connection is silent."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._listening.getsockname()[1])
        self._sockets, self._threads = [self._listening], list[threading.Thread]()
        self._start(self._serve)

    def silence(self, *, all_: bool = False) -> None:
        self._silent_until = float("inf") if all_ else time.monotonic()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for one in self._sockets:
            one.close()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((str(self._server["host"]), int(str(self._server["port"]))))
                began = time.monotonic()
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    self._start(self._pump, source, target, began)

    def _pump(self, source: socket.socket, target: socket.socket, began: float) -> None:
        silent = False
        with suppress(OSError):
            while data := source.recv(65536):
                silent = silent or began < self._silent_until or (self.swallow is not None and self.swallow in data)
                if not silent:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def path(dsn: str) -> Iterator[Path]:
    path = Path(dsn)
    try:
        yield path
    finally:
        path.close()


def archived(conn: Connection) -> int:
    ((number,),) = conn.execute("SELECT count(*) FROM messages.message_archive").fetchall()
    return int(number)


def test_a_worker_whose_path_went_silent_finds_new_work_over_another_connection(
    path: Path, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "silent_after", 1.0)
    queue("orders")
    worker = Worker(
        conninfo=path.dsn, consumer=Consumer(queue_name="orders", handle=lambda message: None), poll_interval=0.5
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        run(conn, verbs.publish("orders", 1))
        until(lambda: archived(conn) == 1)
        path.silence()
        run(conn, verbs.publish("orders", 2))
        until(lambda: archived(conn) == 2, timeout=20)
    finally:
        worker.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_what_a_handler_did_is_settled_over_another_connection_when_the_path_goes_silent(
    path: Path, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "silent_after", 1.0)
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    handled: list[int] = []

    def handle(message: Message) -> None:
        handled.append(message.id)
        path.silence()

    worker = Worker(conninfo=path.dsn, consumer=Consumer(queue_name="orders", handle=handle), poll_interval=0.5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: archived(conn) == 1, timeout=20)
    finally:
        worker.stop()
        thread.join(10)
    assert len(handled) == 1
    assert not thread.is_alive()


def test_a_worker_that_is_told_to_stop_waits_a_moment_for_a_server_that_answers_nothing(
    path: Path, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "last_moment", 0.5)
    queue("orders")
    worker = Worker(
        conninfo=path.dsn, consumer=Consumer(queue_name="orders", handle=lambda message: None), poll_interval=0.2
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    run(conn, verbs.publish("orders", 1))
    until(lambda: archived(conn) == 1)
    path.silence(all_=True)
    time.sleep(0.5)  # until it has asked
    worker.stop()
    thread.join(6)
    assert not thread.is_alive()


def test_a_worker_that_is_told_to_stop_while_it_connects_does_not_wait_for_the_connection(
    path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "last_moment", 0.5)
    path.silence(all_=True)
    worker = Worker(conninfo=path.dsn, consumer=Consumer(queue_name=queue("orders"), handle=lambda message: None))
    thread = threading.Thread(target=worker.run)
    thread.start()
    time.sleep(0.3)
    worker.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_a_stop_that_raises_while_an_answer_is_awaited_ends_the_wait(
    dsn: str, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "last_moment", 0.2)
    queue("orders")

    def stop() -> bool:
        raise KeyError("of the caller")

    with connect(f"{dsn}?options=-cstatement_timeout%3D10s") as mine, conn.transaction():
        conn.execute("LOCK TABLE messages.message_rows")
        with pytest.raises(ConnectionFailed, match="closed"), obeying(mine, stop):
            run(mine, verbs.publish("orders", 1))


def test_a_verb_whose_answer_is_lost_raises(
    path: Path, queue: Queue, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "silent_after", 1.0)
    queue("orders")
    with connect(path.dsn) as mine:
        run(mine, verbs.publish("orders", 1))
        path.silence()
        with pytest.raises(ConnectionFailed):
            run(mine, verbs.publish("orders", 2))


def test_a_statement_on_which_the_server_works_is_waited_for(
    dsn: str, queue: Queue, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "silent_after", 0.3)
    queue("orders")
    with connect(dsn, application_name="waits") as mine:
        with conn.transaction():
            conn.execute("LOCK TABLE messages.message_rows")
            done: list[Any] = []
            thread = threading.Thread(target=lambda: done.append(run(mine, verbs.publish("orders", 1))))
            thread.start()
            until_waiting(conn, "application_name = 'waits' AND wait_event_type = 'Lock'")
            time.sleep(2.0)
        thread.join(10)
        assert done
        assert run(mine, verbs.publish("orders", 2))


def test_a_server_that_takes_a_connection_and_answers_no_question_is_not_waited_for(path: Path) -> None:
    path.swallow = b"pg_backend_pid"
    began = time.monotonic()
    with pytest.raises(ConnectionFailed):
        connect(path.dsn)
    assert time.monotonic() - began < 14


def test_a_login_that_may_open_one_connection_works_and_polls(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")
    conn.execute("DROP ROLE IF EXISTS one_connection")
    conn.execute("CREATE ROLE one_connection LOGIN CONNECTION LIMIT 1 IN ROLE messages_consumer")
    worker = Worker(
        conninfo=make_conninfo(dsn, user="one_connection"),
        consumer=Consumer(queue_name="orders", handle=lambda message: None),
        poll_interval=0.3,
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for number in range(3):
            run(conn, verbs.publish("orders", number))
            until(lambda number=number: archived(conn) == number + 1, timeout=15)
    finally:
        worker.stop()
        thread.join(10)
        until(lambda: not conn.execute("SELECT FROM pg_stat_activity WHERE usename = 'one_connection'").fetchall())
        conn.execute("DROP ROLE one_connection")
