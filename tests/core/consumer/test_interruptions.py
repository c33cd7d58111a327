"""Whatever interrupts a consumer, at whatever time: no message and no outcome is lost, and none is held for nobody.

The matrix says, for each time and each interruption, how four messages that are leased two at a time end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from psycopg.types.json import JsonbBinaryLoader

from airflow_provider_pgqueue.core import ConnectionFailed, Consumer, Message, run, verbs
from airflow_provider_pgqueue.core.client import end_statement
from airflow_provider_pgqueue.core.signals import stop_on_signals
from airflow_provider_pgqueue.core.worker import Waker
from tests.core.consumer.test_wind_up import left, results
from tests.waiting import PATIENCE, until, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

pytestmark = pytest.mark.long

LOCK = "SELECT pg_advisory_xact_lock(1)"


class TimeIsOver(BaseException):
    """As AirflowTaskTimeout is one: neither an Exception nor one of the two that the driver knows."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def on_alarm(number: int, frame: object) -> None:
        raise TimeIsOver

    before = signal.signal(signal.SIGALRM, on_alarm)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupt() -> None:
    ident = threading.main_thread().ident
    signal.pthread_kill(ident, signal.SIGALRM)


@contextmanager
def interrupted_by(act: Callable[[], object]) -> Iterator[None]:
    """Expect TimeIsOver, which another thread causes."""
    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(TimeIsOver):
        yield
    thread.join()


# Each end: what it raises in the consumer. SIGTERM is the wish to stop, as a worker takes it.
ENDS: dict[str, Any] = {
    "SIGALRM that raises": TimeIsOver,
    "SIGINT": KeyboardInterrupt,
    "SIGTERM": None,
    "end of the session": ConnectionFailed,
}
# By time, how the messages end for each of these in their order, as `expected` reads it. What a lost session has leased
# is held until its lease ends; SIGINT does not count the attempt of the message in hand.
MATRIX: dict[str, tuple[str, ...]] = {
    "the lease waits": ("", "", "", ""),
    "a leased row is read": ("", "", "", "0-1"),
    "the handler computes": ("0 1!", "0", "0 1", "0-1"),
    "a statement of the handler waits": ("0 1!", "0", "0 1", "0-1"),
    "the settling waits": ("0 1", "0 1", "0 1", "0-1"),
    "the next are leased": ("0 1", "0 1", "0 1", "0 1 2-3"),
}


def expected(cell: str) -> tuple[dict[int, str], list[tuple[int, int, bool]]]:
    """Read a cell: `0` succeeds, `1!` has had an attempt, `2-3` are held by the lost session, all others are free."""
    done, rest = {}, dict.fromkeys(range(4), (0, False))
    for word in cell.split():
        if word.endswith("!"):
            rest[int(word[0])] = (1, False)
        elif "-" in word:
            rest |= dict.fromkeys(range(int(word[0]), int(word[2]) + 1), (1, True))
        else:
            done[int(word)] = "success"
            del rest[int(word)]
    return done, [(body, *how) for body, how in rest.items()]


@pytest.mark.parametrize("when", MATRIX)
@pytest.mark.parametrize("end", ENDS)
def test_each_message_ends_as_the_matrix_says(
    conn: Connection, connect: Connect, queue: Queue, when: str, end: str
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    own, blocker, killer = connect(), connect(), connect()
    pid = own.info.backend_pid

    def interrupt_it() -> None:
        if end == "end of the session":
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, getattr(signal, end.split()[0]))

    def interrupt_when_it_waits() -> None:
        try:
            until_waiting(killer, f"pid = {pid} AND wait_event_type = 'Lock'")
            statement = killer.execute("SELECT query_start FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
            interrupt_it()
            if end != "SIGTERM":  # which lets the statement come to its end
                running = "SELECT FROM pg_stat_activity WHERE pid = %s AND query_start = %s AND state = 'active'"
                until(lambda: not killer.execute(running, [pid, *(statement or ())]).rowcount)
        finally:
            blocker.rollback()

    class Interrupting(JsonbBinaryLoader):
        def load(self, data: Any) -> Any:
            if reading:
                reading.pop()
                interrupt_it()
            return super().load(data)

    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == 1 and when == "the handler computes":
            interrupt_it()
        if when == "a statement of the handler waits":
            own.execute(LOCK if message.body == 1 else "SELECT")

    def on_batch(counts: Counter[str]) -> None:
        if when == "the next are leased" and sum(counts.values()) == 2:
            interrupt_it()

    seen: list[int] = []
    reading = [when] if when == "a leased row is read" else []
    own.adapters.register_loader("jsonb", Interrupting)
    locked = {"the lease waits": "message", "the settling waits": "message_archive"}.get(when)
    thread = threading.Thread(target=interrupt_when_it_waits)
    if "wait" in when:
        blocker.execute(f"BEGIN; {f'LOCK TABLE messages.{locked} IN EXCLUSIVE MODE' if locked else LOCK}".encode())
        thread.start()
    consumer = Consumer(queue_name="orders", handle=handle, batch_size=2)
    stopping = stop_on_signals() if end == "SIGTERM" else nullcontext(lambda: False)
    raising = pytest.raises(ENDS[end]) if ENDS[end] else nullcontext()
    with stopping as stop, raising:
        consumer.drain(own, stop=stop, on_batch=on_batch)
    if thread.ident:
        thread.join()
    done, rest = expected(MATRIX[when][list(ENDS).index(end)])
    assert (results(conn), left(conn)) == (done, rest)
    assert seen == list(range(len(seen))), "none is handled twice"


class Late(psycopg.Connection[Any]):
    """A connection whose cancels reach the server after the end of the statement."""

    end: Callable[[], object]

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        self.end()
        super().cancel_safe(timeout=timeout)


@pytest.mark.parametrize("level", [None, psycopg.IsolationLevel.READ_COMMITTED])  # with which it opens transactions
@pytest.mark.parametrize("table", ["message", "message_archive"])
def test_a_cancel_that_comes_after_the_end_of_its_statement_leaves_nothing_leased_for_nobody(
    dsn: str, conn: Connection, connect: Connect, queue: Queue, table: str, level: Any
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
            blocker.rollback()
            until(lambda: not is_running(watcher))

        def act() -> None:
            try:
                until_waiting(conn)
                began.extend(*conn.execute("SELECT query_start FROM pg_stat_activity WHERE pid = %s", [pid]))
            finally:
                interrupt()
            until(lambda: not is_running(conn), 10, what="the end of the statement")

        own.end = end
        with interrupted_by(act):
            Consumer(queue_name="orders", handle=lambda message: None, batch_size=2).drain(own)
    done = 0 if table == "message" else 2
    assert results(conn) == dict.fromkeys(range(done), "success")
    assert left(conn) == [(body, 0, False) for body in range(done, 4)]


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


INSIDE_OF_WHAT_IT_CALLS = """
import signal, sys
from airflow_provider_pgqueue.core import Consumer, Worker
from airflow_provider_pgqueue.core.worker import Waker

def interrupt(frame, event, argument):
    signal.raise_signal(signal.SIGTERM)
    return interrupt

def interrupted(call, *arguments, by):
    signal.signal(signal.SIGTERM, lambda *_: by())
    sys.settrace(interrupt)
    call(*arguments)
    sys.settrace(None)

waker = Waker()
interrupted(waker.wake, by=waker.wake)
interrupted(waker.wait, 3600, by=waker.wake)
worker = Worker(conninfo="", consumer=Consumer(queue_name="orders", handle=print))
interrupted(worker.stop, by=worker.stop)
"""

IN_A_FORKED_CHILD = """
import os, signal, sys, time
from airflow_provider_pgqueue.core.signals import stop_on_signals

with stop_on_signals() as stopped:
    for number in (signal.SIGTERM, signal.SIGINT):
        begun, begins = os.pipe()
        if not (child := os.fork()):
            os.write(begins, b".")
            time.sleep(60)
            os._exit(0)
        os.read(begun, 1)  # before that, Python forgets a signal
        os.kill(child, number)
        _, status = os.waitpid(child, 0)
        assert number == signal.SIGINT or os.waitstatus_to_exitcode(status) == -number, status
        assert os.waitstatus_to_exitcode(status) != 0
assert not stopped()
"""

INSIDE_OF_THE_LOG = """
import logging, signal, threading
from airflow_provider_pgqueue.core.signals import stop_on_signals

class Exclusive(logging.Handler):  # as one that writes to a queue
    exclusive, said = threading.Lock(), []

    def emit(self, record):
        with self.exclusive:
            if not self.said:
                signal.raise_signal(signal.SIGTERM)
            self.said.append(record.getMessage())

logging.basicConfig(level="INFO", handlers=[Exclusive()])
with stop_on_signals() as told_to_stop:
    logging.info("at work")
    assert told_to_stop()
assert Exclusive.said == ["at work", "stopping on SIGTERM"], Exclusive.said
"""

BLOCKED_OUTSIDE = """
import signal
from airflow_provider_pgqueue.core.signals import STOPS, stop_on_signals

signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
signal.raise_signal(signal.SIGINT)
with stop_on_signals() as told_to_stop:
    assert told_to_stop()
signal.raise_signal(signal.SIGTERM)
assert signal.sigpending() == {signal.SIGTERM}
"""

AT_EACH_LINE = """
import signal, sys
from airflow_provider_pgqueue.core import Consumer, Worker, worker

FILES = {worker.__file__}

def stopped_at(place):
    made = Worker(conninfo=sys.argv[1], consumer=Consumer(queue_name="orders", handle=print), poll_interval=0.001)
    left = place

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                made.poll_interval = 3600  # for which it would sleep if it did not notice
                signal.raise_signal(signal.SIGTERM)
        return trace

    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    sys.settrace(trace)
    made.run()
    sys.settrace(None)
    assert left <= 0

for place in range(1, 61):
    stopped_at(place)
"""


def run_program(text: str, *arguments: str) -> None:
    """Fail if a program fails or does not end. In this process, one that blocks would block the tests."""
    subprocess.run([sys.executable, "-c", text, *arguments], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("program", [INSIDE_OF_WHAT_IT_CALLS, IN_A_FORKED_CHILD, INSIDE_OF_THE_LOG, BLOCKED_OUTSIDE])
def test_a_signal_blocks_nothing_and_is_not_lost(program: str) -> None:
    run_program(program)


def test_a_signal_at_any_line_stops_a_worker(dsn: str, queue: Callable[..., str]) -> None:
    queue("orders")
    run_program(AT_EACH_LINE, dsn)


def test_a_notification_is_kept_for_the_next_wait_and_many_are_one() -> None:
    waker = Waker()
    for _ in range(1000):
        waker.wake()
    waker.wait(3600)
    began = time.monotonic()
    waker.wait(0.01)
    assert time.monotonic() - began >= 0.01
