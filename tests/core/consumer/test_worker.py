"""A plain worker process, its listener and its leases: woken, renewed, stopped cleanly."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Lease,
    LeaseLost,
    Message,
    Outcome,
    Rejected,
    Retry,
    Success,
    Worker,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.connection import connect_async
from airflow_provider_pgqueue.core.consumer.loop import Loop
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.listener import Listener
from tests.waiting import until, until_past, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def count(conn: Connection, table: str) -> int:
    row = conn.execute(f"SELECT count(*) FROM messages.{table}".encode()).fetchone()  # noqa: S608
    return int(row[0])


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(10)
        assert not thread.is_alive()


def listeners(conn: Connection) -> list[int]:
    rows = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue listener'"
    ).fetchall()
    return [pid for (pid,) in rows]


def held_lease(conn: Connection, lease_for: timedelta, number: int = 1) -> Lease:
    messages = run(conn, verbs.lease("orders", max_messages=number, lease_for=lease_for))
    return Lease(conn, messages, lease_for=lease_for)


def test_a_notify_wakes_a_worker_long_before_its_next_poll(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=60)):
        until(lambda: listeners(conn))
        run(conn, verbs.publish("orders", 1))
        until(lambda: count(conn, "message_archive") == 1, timeout=30)
        run(conn, verbs.publish("orders", 2, delay=timedelta(milliseconds=300)))
        until(lambda: count(conn, "message_archive") == 2, timeout=30)


def test_an_idle_worker_takes_a_message_as_soon_as_the_lease_of_another_ends(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=30)):
        until_waiting(conn, "application_name = 'pgqueue listener' AND query LIKE '%scan(%' AND state = 'idle'")
        ends = []
        for done in range(3):
            with conn.transaction():
                run(conn, verbs.publish("orders", 1))
                (message,) = run(conn, verbs.lease("orders", lease_for=timedelta(seconds=1)))
            ends.append(message.lock_expires_at)
            until(lambda done=done: count(conn, "message_archive") > done)
    leased = conn.execute("SELECT leased_at FROM messages.message_archive ORDER BY id").fetchall()
    # A busy machine may be slow once.
    lates = [leased_at - end for (leased_at,), end in zip(leased, ends, strict=True)]
    assert timedelta(0) <= min(lates) < timedelta(seconds=0.2)


def test_who_is_notified_hears_it_before_anything_is_asked(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    seen: list[str] = []

    async def look(listening: psycopg.AsyncConnection[Any]) -> None:
        seen.append("look")

    async def listen() -> None:
        listener = Listener(lambda: connect_async(dsn), look, poll_interval=60, on_notify=lambda: seen.append("notify"))
        listening = asyncio.create_task(listener.run())
        await asyncio.to_thread(until, lambda: seen)
        await asyncio.to_thread(run, conn, verbs.publish("orders", 1))
        await asyncio.to_thread(until, lambda: "notify" in seen and seen[-1] == "look")
        listening.cancel()
        await asyncio.wait([listening])

    asyncio.run(listen())
    assert seen[:3] == ["look", "notify", "look"]


def test_the_thread_that_notified_waits_again_without_another_turn(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    seen: list[str] = []

    class Turns(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            seen.append("turn" if timeout == 0 else "wait")
            return super().select(timeout)

    async def look(listening: psycopg.AsyncConnection[Any]) -> None:
        seen.append("look")

    listener = Listener(lambda: connect_async(dsn), look, poll_interval=60, on_notify=lambda: seen.append("notify"))
    # Nothing else runs on its loop, where it would take turns of its own.
    loop = asyncio.SelectorEventLoop(Turns())
    listening = loop.create_task(listener.run())
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.wait([listening]),))
    thread.start()
    try:
        until(lambda: "look" in seen)
        run(conn, verbs.publish("orders", 1))
        until(lambda: "notify" in seen and seen[-1] != "notify")
    finally:
        loop.call_soon_threadsafe(listening.cancel)
        thread.join(10)
        loop.close()
    assert seen[seen.index("notify") + 1] == "wait"


def test_a_worker_whose_connections_are_cut_works_on(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=60)):
        (first,) = until(lambda: listeners(conn))
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'pgqueue%'"
        )
        until(lambda: listeners(conn) not in ([], [first]))
        run(conn, verbs.publish("orders", 1))
        until(lambda: count(conn, "message_archive") == 1, timeout=30)


def test_a_worker_whose_listener_gave_up_works_on_and_stops_cleanly(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")
    conn.execute("ALTER FUNCTION messages.ready_queues RENAME TO gone")
    worker = Worker(
        conninfo=dsn, consumer=Consumer(queue_name="orders", handle=lambda message: None), poll_interval=0.05
    )
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(worker.run)
        until(lambda: "not listening" in caplog.text)
        until(lambda: all(thread.name != "pgqueue-listener" for thread in threading.enumerate()))
        run(conn, verbs.publish("orders", 1))
        until(lambda: count(conn, "message_archive") == 1)
        worker.stop()
        assert stopped.result(10) == {"success": 1}


class Renewed:
    renewed = 0

    def renew(self) -> None:
        self.renewed += 1


def test_a_lease_that_is_shorter_than_the_one_before_is_renewed_in_time() -> None:
    with closing(Renewal()) as renewal:
        renewal.hold(Renewed(), timedelta(hours=1))
        shorter = Renewed()
        renewal.hold(shorter, timedelta(milliseconds=30))
        until(lambda: shorter.renewed > 1, timeout=20.0)


def test_after_a_rest_a_renewal_renews_the_next_lease_and_not_the_one_before() -> None:
    with closing(Renewal()) as renewal:
        first, second = Renewed(), Renewed()
        renewal.hold(first, timedelta(milliseconds=30))
        until(lambda: first.renewed, timeout=20.0)
        renewal.rest()
        renewed = first.renewed
        renewal.hold(second, timedelta(milliseconds=30))
        until(lambda: second.renewed > 1, timeout=20.0)
        assert first.renewed == renewed


def test_a_drain_that_ends_waits_for_a_renewal_in_progress() -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        ended = False

        def renew(self) -> None:
            begun.set()
            may_end.wait()
            self.ended = True

    slow = Slow()
    with closing(Renewal()) as renewal, ThreadPoolExecutor(1) as pool:

        def drain() -> bool:
            renewal.hold(slow, timedelta(milliseconds=30))
            begun.wait()
            renewal.rest()
            return slow.ended

        ended = pool.submit(drain)
        begun.wait()
        may_end.set()
        assert ended.result()


def test_the_drains_of_a_loop_share_their_threads(conn: Connection, queue: Queue) -> None:
    queue("orders")
    names = {"pgqueue-renewal", "pgqueue-handler"}
    threads: list[threading.Thread] = []

    def handle(message: Message) -> None:
        threads.extend(thread for thread in threading.enumerate() if thread.name in names)

    consumer = Consumer(queue_name="orders", handle=handle, handler_timeout=timedelta(minutes=1))
    with Loop(consumer, conn) as loop:
        for done in range(1, 3):
            run(conn, verbs.publish("orders", 1))
            assert loop.drain() == {"success": done}
    assert len(threads) == 4
    assert len(set(threads)) == 2
    until(lambda: not any(thread.is_alive() for thread in threads))


def test_each_lease_of_a_drain_is_renewed(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))

    def slow(message: Message) -> None:
        until_past(other, message.lock_expires_at)
        others = run(other, verbs.lease("orders", max_messages=2))
        assert message.id not in [taken.id for taken in others]
        for taken in others:
            run(other, verbs.release(taken.lock_token, [taken.id], count_attempt=False))

    consumer = Consumer(queue_name="orders", handle=slow, batch_size=1, lease_for=timedelta(seconds=1))
    assert consumer.drain(conn) == {"success": 2}


def test_a_renewal_does_not_take_what_is_settled_meanwhile_for_lost(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(200))))
    lease = held_lease(conn, timedelta(minutes=1), 200)
    done = threading.Event()

    def renew() -> None:
        while not done.is_set():
            lease.renew()

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        for message in lease:
            lease.archive([message])
        done.set()
        renewing.result()
    assert lease.lost == frozenset()


def test_only_a_lease_in_a_transaction_of_its_own_does_not_wait_for_the_disk(connect: Connect, queue: Queue) -> None:
    conn, mine = connect(), connect(autocommit=False)
    conn.execute("CREATE TABLE seen (setting text)")
    conn.execute(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    conn.execute("CREATE TRIGGER see AFTER UPDATE OR DELETE ON messages.message_rows EXECUTE FUNCTION see()")
    conn.execute("SET synchronous_commit = on")
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))

    def settings(session: Connection) -> set[str]:
        return {setting for (setting,) in session.execute("DELETE FROM seen RETURNING setting")}

    (message,) = run(conn, verbs.lease("orders"))
    assert settings(conn) == {"off"}
    held = (message.lock_token, [message.id])
    run(conn, verbs.extend(*held, lease_for=timedelta(minutes=1)))
    assert settings(conn) == {"off"}
    run(conn, verbs.archive(*held))
    assert settings(conn) == {"on"}
    assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    with conn.transaction():
        run(conn, verbs.lease("orders"))
        assert settings(conn) == {"on"}
    run(mine, verbs.lease("orders"))
    assert settings(mine) == {"on"}


def test_a_lease_that_ends_in_an_error_is_released_and_counts_an_attempt(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))

    def work() -> None:
        with held_lease(conn, timedelta(minutes=1), 2) as lease:
            lease.archive([lease[0]])
            raise KeyError("oops")

    with pytest.raises(KeyError):
        work()
    (message,) = run(other, verbs.lease("orders", max_messages=10))
    assert (message.body, message.attempts) == (2, 2)


def test_a_lease_that_was_lost_says_so_and_settles_the_others(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    lease = held_lease(conn, timedelta(minutes=1), 2)
    conn.execute("UPDATE messages.message SET lock_expires_at = now() WHERE id = %s", [lease[0].id])
    with pytest.raises(LeaseLost) as lost:
        lease.settle({lease[0]: None, lease[1]: Rejected("no")})
    assert lost.value.ids == (lease[0].id,) == tuple(lease.lost)
    assert conn.execute("SELECT message, result FROM messages.message_archive").fetchall() == [(2, "rejected")]


def test_no_body_reaches_the_log(connect: Connect, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    conn = connect()
    caplog.set_level("DEBUG")
    run(conn, verbs.publish(queue("orders", max_attempts=1), "SECRET"))

    def handle(message: Message) -> None:
        raise ValueError(f"cannot read {message.body}")

    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"failed": 1}
    assert "ValueError" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_worker_delivers_again_when_the_pause_ends_and_not_when_it_polls_next(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders", backoff_first=timedelta(seconds=1), backoff_max=timedelta(seconds=1))
    seen: list[int] = []

    def handle(message: Message) -> Outcome:
        seen.append(message.attempts)
        if message.attempts == 1:
            return Retry(timedelta(seconds=0.5))
        if message.attempts == 2:
            raise ValueError("again")
        return Success()

    with working(Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle), poll_interval=3600)):
        until_waiting(conn, "application_name = 'pgqueue listener'")
        run(conn, verbs.publish("orders", 1))
        until(lambda: count(conn, "message_archive"), timeout=30)
    assert seen == [1, 2, 3]
