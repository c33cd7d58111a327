"""A consumer that ends early: what was handled is settled, the rest goes back, and the reason is told as it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    Consumer,
    HandlerBroken,
    Lease,
    Message,
    Retry,
    Success,
    Worker,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.consumer.loop import Loop
from tests.waiting import until, until_past

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def results(conn: Connection) -> dict[Any, str]:
    return dict(conn.execute("SELECT message, result::text FROM messages.message_archive").fetchall())


def left(conn: Connection) -> list[tuple[Any, int, bool]]:
    """Body, attempts, and whether it is leased, of each message in the queue."""
    return conn.execute("SELECT message, attempts, lock_token IS NOT NULL FROM messages.message ORDER BY id").fetchall()


def until_settling_is_due() -> None:
    """Return when whatever was handled before this call is settled after the next message: every second."""
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 1, what="the time to settle")


@pytest.mark.parametrize("settles", [True, False])
def test_a_handler_that_ends_the_process_ends_it_also_if_the_connection_breaks(
    conn: Connection, connect: Connect, queue: Queue, settles: bool
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))

    def handle(message: Message) -> None:
        if settles and message.body == 1:
            until_settling_is_due()
        if message.body == 2:
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", [own.info.backend_pid])
            raise SystemExit(3)

    # A worker would take the error of a lost connection for one that the next connection fixes.
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


def test_after_an_error_of_the_caller_the_current_message_goes_back_as_an_attempt_with_the_error(
    conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1, 2]))
    seen: list[int] = []

    def stop() -> bool:
        if seen:
            raise KeyError("of the caller")
        return False

    with pytest.raises(KeyError, match="of the caller"):
        Consumer(queue_name="orders", handle=lambda message: seen.append(message.body)).drain(conn, stop=stop)
    assert results(conn) == {0: "success"}
    assert left(conn) == [(1, 1, False), (2, 0, False)]
    errors = conn.execute("SELECT last_error FROM messages.message ORDER BY id").fetchall()
    assert errors == [("KeyError: 'of the caller'",), (None,)]


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
    with Loop(Consumer(queue_name="orders", handle=handle), conn, on_lease=leases.append) as loop:
        return loop.drain(stop=stopping.is_set)


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
            lease.give_back(other, reason="told to stop")

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


def popped(messages: list[Message]) -> None:
    messages.pop()


def reversed_(messages: list[Message]) -> None:
    messages.reverse()


def emptied(messages: list[Message]) -> None:
    while messages:
        messages.pop()


def cut(messages: list[Message]) -> list[Success]:
    outcomes = [Success(output=message.body) for message in messages]
    del messages[1:]
    return outcomes


@pytest.mark.parametrize("change", [emptied, cut, popped, reversed_])
@pytest.mark.parametrize("limit", [None, timedelta(minutes=1)])
def test_a_batch_handler_may_change_its_list(
    conn: Connection, queue: Queue, change: Callable[[list[Message]], Any], limit: timedelta | None
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    calls: list[int] = []

    def handle(messages: list[Message]) -> Any:
        calls.append(len(messages))
        return change(messages)

    consumer = Consumer(queue_name="orders", handle_batch=handle, handler_timeout=limit)
    assert consumer.drain(conn, max_messages=20) == {"success": 4}
    assert calls == [4]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_message_without_an_outcome_was_begun_and_is_not_delivered_again_at_once(
    conn: Connection, queue: Queue, at_once: bool
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(3))))
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == 1:
            object.__setattr__(message, "id", message.id + 1000)

    handlers: dict[str, Any] = {"handle": handle}
    if at_once:
        handlers = {"handle_batch": lambda messages: list(map(handle, messages))}
    Consumer(queue_name="orders", **handlers).drain(conn, max_messages=20)
    assert seen == [0, 1, 2]
    assert results(conn) == {0: "success", 2: "success"}
    assert left(conn) == [(1, 1, False)]


def test_what_was_leased_over_a_connection_that_broke_is_finished_over_the_next(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    seen: list[int] = []

    def handle(message: Message) -> Any:
        seen.append(message.body)
        if message.body != 1 or seen.count(1) > 1:
            return None
        until_settling_is_due()
        end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'pgqueue worker'"
        assert conn.execute(end).fetchall() == [(True,)]
        return Success(output="y" * 70_000)

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle))
    assert worker.run(until_empty=True) == {"success": 3, "failed": 1, "released": 2}
    assert seen == [0, 1, 2, 3]
    assert results(conn) == {0: "success", 1: "failed", 2: "success", 3: "success"}


def test_a_worker_that_is_stopped_as_its_connection_breaks_finishes_its_lease_over_another(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def handle(message: Message) -> None:
        if message.body == 1:
            end = (
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue w%'"
            )
            assert conn.execute(end).fetchall() == [(True,)]
            worker.stop()

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle))
    assert worker.run(until_empty=True) == {"success": 2, "released": 2}
    assert results(conn) == {0: "success", 1: "success"}
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def test_what_a_stopped_worker_could_not_give_back_is_left_to_its_lease_and_not_counted(
    dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> None:
        end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue w%'"
        assert conn.execute(end).fetchall() == [(True,)]
        worker.conninfo = "host=/nowhere"
        worker.stop()

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle))
    assert worker.run(until_empty=True) == {}
    assert "could not settle or release 2 messages (ConnectionFailed): delivered again" in caplog.text
    assert left(conn) == [(0, 1, True), (1, 1, True)]


def test_a_batch_whose_connection_breaks_is_settled_whole_over_the_next(
    dsn: str, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(5))))
    seen: list[int] = []

    def handle(messages: list[Message]) -> None:
        seen.extend(message.body for message in messages)
        end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'pgqueue worker'"
        assert conn.execute(end).fetchall() == [(True,)]

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle_batch=handle))
    assert worker.run(until_empty=True) == {"success": 5}
    assert seen == [0, 1, 2, 3, 4]
    assert left(conn) == []


def test_a_batch_that_breaks_the_handler_keeps_its_successes(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(30))))

    def handle(messages: list[Message]) -> Any:
        return [Retry(failure={"error": "Odd", "message": "so"}) if message.body < 20 else None for message in messages]

    consumer = Consumer(queue_name="orders", handle_batch=handle, give_up_after=20)
    with Loop(consumer, conn) as loop, pytest.raises(HandlerBroken):
        loop.drain()
    assert results(conn) == dict.fromkeys(range(20, 30), "success")
    assert left(conn) == [(body, 1, False) for body in range(20)]
    assert loop.counts == {"success": 10, "retried": 20}


def refuse(conn: Connection, what: str, times: int) -> None:
    """Let a lock_timeout end the next statements that change something, as in INSERT ON messages.message_archive."""
    conn.execute("CREATE SEQUENCE refusals")
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        f" IF nextval('public.refusals') <= {times} THEN"
        " RAISE EXCEPTION 'canceling statement due to lock timeout' USING ERRCODE = '55P03'; END IF;"
        " RETURN NEW; END $$".encode()
    )
    conn.execute(f"CREATE TRIGGER refuse BEFORE {what} FOR EACH ROW EXECUTE FUNCTION refuse()".encode())


TO_ARCHIVE = "INSERT ON messages.message_archive"


def test_what_was_handled_is_settled_by_another_call_if_the_first_exceeds_its_time(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    # That of the exchange, and that which settles when it is refused.
    refuse(connect(), TO_ARCHIVE, times=2)
    consumer = Consumer(queue_name="orders", handle=lambda message: None, batch_size=2)
    with Loop(consumer, conn) as loop, pytest.raises(ConnectionFailed, match="lock timeout"):
        loop.drain()
    assert results(conn) == {0: "success", 1: "success"}
    assert left(conn) == [(2, 0, False), (3, 0, False)]
    assert loop.counts == {"success": 2}


def test_what_was_handled_and_cannot_be_settled_is_not_released(
    conn: Connection, connect: Connect, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    refuse(connect(), TO_ARCHIVE, times=99)
    seen: list[int] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: seen.append(message.body))
    with Loop(consumer, conn) as loop, pytest.raises(ConnectionFailed, match="lock timeout"):
        loop.drain(stop=lambda: len(seen) == 2)
    assert left(conn) == [(0, 1, True), (1, 1, True), (2, 0, False), (3, 0, False)]
    assert loop.counts == {}
    assert "could not settle what was handled before ConnectionFailed (ConnectionFailed)" in caplog.text


def test_a_worker_settles_over_its_next_connection_what_it_could_not(dsn: str, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    refuse(conn, TO_ARCHIVE, times=3)
    seen: list[int] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: seen.append(message.body))
    assert Worker(conninfo=dsn, consumer=consumer).run(until_empty=True) == {"success": 4}
    assert seen == [0, 1, 2, 3]
    assert results(conn) == dict.fromkeys(range(4), "success")


def test_what_was_settled_before_another_call_failed_is_counted_once(dsn: str, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))

    def handle(message: Message) -> Any:
        if message.body == 0:
            return None
        refuse(conn, "UPDATE ON messages.message", times=2)
        return Retry(timedelta(hours=1))

    worker = Worker(conninfo=dsn, consumer=Consumer(queue_name="orders", handle=handle))
    assert worker.run(until_empty=True) == {"success": 1, "retried": 1}
    assert results(conn) == {0: "success"}
    assert left(conn) == [(1, 1, False)]


def test_an_outcome_that_cannot_be_kept_fails_its_message_by_another_call_too(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    run(conn, verbs.publish(queue("orders"), 0))
    refuse(connect(), TO_ARCHIVE, times=1)
    with pytest.raises(ConnectionFailed, match="lock timeout"):
        Consumer(queue_name="orders", handle=lambda message: Success(output="y" * 70_000)).drain(conn)
    assert results(conn) == {0: "failed"}


def test_what_a_stopping_consumer_lost_before_it_began_it_is_counted_and_no_error(
    conn: Connection, connect: Connect, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    own = connect()
    ids = run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        assert run(conn, verbs.release_messages("orders", ids[1:3])) == ids[1:3]

    counts = Consumer(queue_name="orders", handle=handle).drain(own, stop=lambda: bool(seen))
    assert counts == {"success": 1, "lost": 2, "released": 1}
    assert f"the lease of 2 messages ended: {ids[1]}, {ids[2]}; they are delivered again, unless" in caplog.text
    assert left(conn) == [(1, 1, False), (2, 1, False), (3, 0, False)]


def test_a_message_whose_renewal_a_handler_rolled_back_is_known_to_be_lost_before_it_begins(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(3))))
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        with own.transaction():
            until_past(conn, message.lock_expires_at)
            raise psycopg.Rollback

    consumer = Consumer(queue_name="orders", handle=handle, lease_for=timedelta(seconds=1))
    assert consumer.drain(own, max_messages=3) == {"lost": 1}
    assert seen == [0]
