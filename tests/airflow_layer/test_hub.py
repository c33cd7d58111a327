"""One session for all who wait: counted in pg_stat_activity."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, InvalidMessage, run, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.triggers.hub import HubTimes, notification_stream
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.watch import DeadMessageWatch, MessageWatch, Notification
from tests.airflow_layer.conftest import as_json
from tests.airflow_layer.secrets import Vault
from tests.waiting import async_until, async_until_still
from tools.chapters import functions

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
USUAL = HubTimes()
LISTENERS = (
    "SELECT pid, query_start FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'pgqueue:listener'"
)


def listeners(conn: Connection) -> list[Any]:
    return conn.execute(LISTENERS).fetchall()


def has_polled(conn: Connection, *, since: int = 0) -> bool:
    """Tell whether the hub waits after a poll, in another session than the one that it lost."""
    found = conn.execute(f"{LISTENERS} AND state = 'idle' AND query LIKE '%closed_queues(%'")
    return any(pid != since for pid, _ in found)


def lose(conn: Connection) -> int:
    """End the session of the hub, and return which that was."""
    ((pid, _),) = listeners(conn)
    conn.execute("SELECT pg_terminate_backend(%s)", [pid])
    return int(pid)


async def another_statement(conn: Connection) -> None:
    before = listeners(conn)
    await async_until(lambda: listeners(conn) != before)


def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def first(conn_id: str, queue_name: str = "orders", times: HubTimes = USUAL, **options: Any) -> Notification:
    async with aclosing(
        notification_stream(conn_id, MessageWatch(queue_name=queue_name, **options), times)
    ) as notifications:
        return await anext(notifications)


def test_a_thousand_who_wait_use_one_session_and_no_statement_while_nothing_happens(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    names = [queue(f"orders_{number}") for number in range(100)]

    async def wait_for_all() -> None:
        waiting = [asyncio.create_task(first(conn_id, names[number % 100])) for number in range(1000)]
        await async_until(lambda: listeners(conn))
        assert len(await async_until_still(lambda: listeners(conn), 1.0)) == 1
        for name in names:
            PgQueueHook(conn_id).publish(name, 1, conn=conn)
        assert len(await asyncio.gather(*waiting)) == 1000

    within(60, wait_for_all())


def test_a_queue_that_is_dropped_while_somebody_waits_is_said_once(
    conn_id: str, queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")

    def said() -> int:
        return len(re.findall("queue 'orders' (?:no longer exists|does not exist)", caplog.text))

    async def wait() -> Notification:
        times = HubTimes(doubt_again=0.0, min_gap=0.05)
        waiting = asyncio.create_task(first(conn_id, times=times, poll_interval=0.05))
        await async_until(lambda: has_polled(conn))
        conn.execute("SELECT messages.drop_queue('orders', force => true)")
        await async_until(said)
        await another_statement(conn)
        assert await async_until_still(said, 0.3) == 1
        PgQueueHook(conn_id).publish(queue("orders"), 1, conn=conn)
        return await waiting

    assert within(60, wait())["ready"] == 1


def test_a_queue_that_is_paused_is_said_once_to_each_who_waits_and_again_after_it_was_resumed(
    conn_id: str, queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    PgQueueHook(conn_id).publish(queue("orders", paused=True), 1)

    def said() -> int:
        return caplog.text.count("queue 'orders' is paused")

    async def wait() -> list[Notification]:
        times = HubTimes(doubt_again=0.0, min_gap=0.05)
        options: Any = {"times": times, "poll_interval": 0.05, "min_messages": 2}
        waiting = [asyncio.create_task(first(conn_id, **options)) for _ in range(2)]
        await async_until(lambda: said() == 2)
        await another_statement(conn)
        assert await async_until_still(said, 0.3) == 2
        conn.execute("SELECT messages.resume_queue('orders')")
        for _ in range(4):  # a poll is two statements
            await another_statement(conn)
        conn.execute("SELECT messages.pause_queue('orders')")
        await async_until(lambda: said() == 4)
        conn.execute("SELECT messages.resume_queue('orders')")
        PgQueueHook(conn_id).publish("orders", 1, conn=conn)
        return await asyncio.gather(*waiting)

    assert [notification["ready"] for notification in within(60, wait())] == [2, 2]


def test_work_that_is_there_notifies_at_once_and_work_that_comes_later_by_its_notification(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    queue("mail")

    async def both() -> tuple[Notification, Notification]:
        there = await first(conn_id, "orders", poll_interval=300)
        before = listeners(conn)
        later = asyncio.create_task(first(conn_id, "mail", poll_interval=300))
        await async_until(lambda: has_polled(conn) and listeners(conn) != before)
        hook.publish("mail", 1, conn=conn)
        return there, await later

    there, later = within(20, both())
    assert (there["queue_name"], there["ready"]) == ("orders", 1)
    assert (later["queue_name"], later["ready"]) == ("mail", 1)


def test_a_message_that_becomes_ready_later_notifies_then(conn_id: str, queue: Queue) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1, delay=timedelta(seconds=1))
    started = time.monotonic()
    within(20, first(conn_id, poll_interval=300))
    assert 0.5 < time.monotonic() - started < 10


def test_what_a_rate_holds_back_notifies_when_the_next_may_be_leased_and_not_before(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    run(conn, verbs.publish_batch(queue("orders", rate_limit=1, rate_period=timedelta(seconds=1)), [1, 2]))
    assert len(run(conn, verbs.lease("orders", max_messages=2))) == 1
    (status,) = run(conn, verbs.status("orders"))
    within(20, first(conn_id, poll_interval=300))
    (late,) = conn.execute("SELECT clock_timestamp() - %s", [status.limited_until]).fetchone() or ()
    assert timedelta(0) <= late < timedelta(seconds=5)


@pytest.mark.parametrize("for_task", [True, False], ids=["sensor", "watcher"])
def test_an_expired_lease_notifies_at_once(conn_id: str, queue: Queue, conn: Connection, for_task: bool) -> None:
    queue("orders")

    async def wait() -> timedelta:
        async with aclosing(PgQueueMessageTrigger(queue_name="orders", for_task=for_task).run()) as notifications:
            waiting = asyncio.create_task(anext(notifications))
            await async_until(lambda: has_polled(conn))
            with conn.transaction():
                run(conn, verbs.publish("orders", 1))
                (message,) = run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=300)))
            await waiting
        (late,) = conn.execute("SELECT clock_timestamp() - %s", [message.lock_expires_at]).fetchone() or ()
        run(conn, verbs.purge_queue("orders"))
        return late

    # A busy machine may be slow once.
    lates = [within(20, wait()) for _ in range(3)]
    assert timedelta(0) <= min(lates) < timedelta(seconds=0.2)


def test_a_message_that_dies_notifies_by_its_notification(conn_id: str, queue: Queue, conn: Connection) -> None:
    run(conn, verbs.publish(queue("orders"), 1))

    async def wait() -> Notification:
        async with aclosing(
            notification_stream(conn_id, DeadMessageWatch(queue_name="orders", poll_interval=300))
        ) as dead:
            next_dead = asyncio.ensure_future(anext(dead))
            await async_until(lambda: has_polled(conn))
            (message,) = run(conn, verbs.lease("orders"))
            run(conn, verbs.archive(message.lock_token, [message.id], result="rejected"))
            return await asyncio.wait_for(next_dead, 15)  # it would look again after 27 s

    assert within(60, wait())["waiting"] == 1


def test_dead_messages_and_messages_are_looked_for_on_the_same_session(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)

    async def both() -> Notification:
        async with aclosing(
            notification_stream(conn_id, DeadMessageWatch(queue_name="orders", poll_interval=300))
        ) as dead:
            next_dead = asyncio.ensure_future(anext(dead))
            await first(conn_id)
            assert len(listeners(conn)) == 1
            with hook.lease("orders") as lease:
                lease.reject(lease[0], "invalid")
            return await next_dead

    assert within(20, both())["waiting"] == 1


def test_after_a_lost_connection_everybody_looks_again(conn_id: str, queue: Queue, conn: Connection) -> None:
    names = [queue(f"silent_{number}", notify="off") for number in range(3)]

    async def lose_it() -> None:
        waiting = [asyncio.create_task(first(conn_id, name, poll_interval=300)) for name in names]
        await async_until(lambda: has_polled(conn))
        ((pid, _),) = listeners(conn)
        for name in names:
            PgQueueHook(conn_id).publish(name, 1, conn=conn)
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])
        await asyncio.gather(*waiting)

    within(30, lose_it())


SLOW = """
    CREATE SEQUENCE public.asked;
    GRANT USAGE ON SEQUENCE public.asked TO PUBLIC;
    CREATE OR REPLACE FUNCTION messages.ready_queues(queue_names text[] DEFAULT NULL, count_up_to integer DEFAULT 1000)
    RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval, topics text[],
                   oldest_at timestamptz)
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('public.asked'), pg_sleep(60);
    END $$
"""
"""As on a server that is far too slow. The sequence counts the questions."""
QUICK = functions()["ready_queues"].text


@pytest.mark.parametrize("by", ["our deadline", "statement_timeout"])
def test_a_question_that_is_slow_costs_the_others_neither_their_look_nor_the_session(
    dsn: str,
    airflow_connection: Queue,
    queue: Queue,
    conn: Connection,
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    times = HubTimes(deadline=1.0) if by == "our deadline" else USUAL
    options = {"options": "-c statement_timeout=1000"} if by == "statement_timeout" else {}
    conn_id = airflow_connection(dsn, extra=options)
    conn.execute(SLOW.encode())
    queue("orders")
    queue("mail")

    async def dead() -> Notification:
        watch = DeadMessageWatch(queue_name="mail", poll_interval=0.2)
        async with aclosing(notification_stream(conn_id, watch, times)) as notifications:
            return await anext(notifications)

    async def wait() -> list[Notification]:
        slow = asyncio.create_task(first(conn_id, "orders", times, poll_interval=0.2))
        await async_until(lambda: "a poll was cancelled after" in caplog.text)
        ((pid, _),) = listeners(conn)
        other = asyncio.create_task(dead())
        run(conn, verbs.publish("mail", 1))
        (message,) = run(conn, verbs.lease("mail"))
        run(conn, verbs.archive(message.lock_token, [message.id], result="rejected"))
        found = [await other]
        assert not slow.done()
        run(conn, verbs.publish("orders", 1))
        conn.execute(QUICK.encode())
        found.append(await slow)
        assert [pid for pid, _ in listeners(conn)] == [pid]
        return found

    assert [notification["queue_name"] for notification in within(60, wait())] == ["mail", "orders"]
    assert "next try in" not in caplog.text


def test_a_question_that_is_too_slow_is_asked_ever_more_rarely_and_said_once(
    conn_id: str, queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute(SLOW.encode())
    queue("orders")

    def asked() -> int:
        row = conn.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.asked").fetchone()
        return row[0] if row else 0

    async def wait() -> float:
        times = HubTimes(deadline=0.2)
        waiting = asyncio.create_task(first(conn_id, times=times, poll_interval=0.05))
        await async_until(lambda: asked() == 1)
        began = time.monotonic()
        await async_until(lambda: asked() == 3)
        waiting.cancel()
        assert caplog.text.count("queue 'orders': a poll was cancelled after") == 1
        return time.monotonic() - began

    # After polls of 0.2 s pauses of 0.4 and 0.8 s.
    assert within(60, wait()) > 1.5


def test_whether_the_session_lives_is_asked_while_the_only_question_pauses(
    conn_id: str, queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute(SLOW.encode())
    queue("orders")

    def asked() -> bool:
        return bool(conn.execute(f"{LISTENERS} AND state = 'idle' AND query LIKE '%pg_backend_pid%'").rowcount)

    async def wait() -> None:
        waiting = asyncio.create_task(first(conn_id, times=HubTimes(deadline=1.0)))
        await async_until(lambda: "cancelled after" in caplog.text)
        run(conn, verbs.publish("orders", 1))
        await async_until(asked)
        waiting.cancel()

    within(30, wait())


def test_a_session_that_falls_silent_is_replaced(conn_id: str, queue: Queue, conn: Connection) -> None:
    queue("orders")

    async def freeze() -> Notification:
        times = HubTimes(deadline=1.0, doubt_again=0.0)
        waiting = asyncio.create_task(first(conn_id, times=times, poll_interval=0.2))
        await async_until(lambda: has_polled(conn))
        ((frozen, _),) = listeners(conn)
        os.kill(frozen, signal.SIGSTOP)
        try:
            await async_until(lambda: has_polled(conn, since=frozen))
        finally:
            os.kill(frozen, signal.SIGCONT)
        run(conn, verbs.publish("orders", 1))
        return await waiting

    assert within(60, freeze())["ready"] == 1


def test_a_lost_connection_is_opened_again_while_airflow_cannot_say_what_it_is(
    dsn: str, vault: type[Vault], queue: Queue, conn: Connection
) -> None:
    """Where Airflow looks for connections is away, too: it says nothing at first, then that there is no such id."""
    queue("orders", notify="off")
    vault.connections["vaulted"] = as_json(dsn)

    async def lose_it_twice() -> Notification:
        times = HubTimes(patience=0.1, doubt_again=0.0)
        waiting = asyncio.create_task(first("vaulted", times=times, poll_interval=300))
        await async_until(lambda: has_polled(conn))
        vault.open.clear()
        before = lose(conn)
        await async_until(lambda: has_polled(conn, since=before))
        assert len(vault.asked) == 2
        vault.connections.clear()
        vault.open.set()
        run(conn, verbs.publish("orders", 1))
        lose(conn)
        return await waiting

    assert within(30, lose_it_twice())["ready"] == 1
    assert vault.asked == ["vaulted"] * 3


def test_a_connection_that_was_changed_meanwhile_is_asked_for_until_it_is_known(
    dsn: str, vault: type[Vault], queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders", notify="off")
    conn.execute("CREATE ROLE hub_before LOGIN IN ROLE messages_consumer")
    vault.connections["vaulted"] = as_json(dsn, login="hub_before")

    async def change_it() -> Notification:
        waiting = asyncio.create_task(first("vaulted", times=HubTimes(patience=0.1), poll_interval=300))
        await async_until(lambda: has_polled(conn))
        vault.open.clear()
        vault.connections["vaulted"] = as_json(dsn)
        run(conn, verbs.publish("orders", 1))
        conn.execute("ALTER ROLE hub_before RENAME TO hub_after")
        lose(conn)
        await async_until(lambda: "is refused, trying on" in caplog.text)
        vault.open.set()
        return await waiting

    try:
        assert within(30, change_it())["ready"] == 1
    finally:
        conn.execute("DROP ROLE IF EXISTS hub_before, hub_after")


def test_who_waits_outlives_a_change_of_the_password_that_airflow_hears_of_later(
    dsn: str,
    airflow_connection: Queue,
    queue: Queue,
    conn: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server trusts everybody here, so a role that is gone stands for a password that is refused."""
    queue("orders", notify="off")
    conn.execute("CREATE ROLE hub_old LOGIN IN ROLE messages_consumer")
    conn_id = airflow_connection(dsn, login="hub_old")

    async def change_it() -> Notification:
        waiting = asyncio.create_task(first(conn_id, poll_interval=300))
        await async_until(lambda: has_polled(conn))
        run(conn, verbs.publish("orders", 1))
        conn.execute("ALTER ROLE hub_old RENAME TO hub_new")
        lose(conn)
        # Refused with what was known, and again with what Airflow still says.
        await async_until(lambda: waiting.done() or caplog.text.count("next try in") >= 3)
        assert not waiting.done()
        airflow_connection(dsn, login="hub_new")
        return await waiting

    try:
        assert within(60, change_it())["ready"] == 1
    finally:
        conn.execute("DROP ROLE IF EXISTS hub_old, hub_new")
    assert caplog.text.count("is refused, trying on") == 1


def test_who_comes_while_the_others_wait_is_notified_what_is_there(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    PgQueueHook(conn_id).publish(queue("orders", notify="off"), 1)
    queue("mail")

    async def one_after_the_other() -> Notification:
        waiting = asyncio.create_task(first(conn_id, "mail", poll_interval=300))
        await async_until(lambda: has_polled(conn))
        try:
            return await first(conn_id, "orders", poll_interval=300)
        finally:
            waiting.cancel()

    assert within(20, one_after_the_other())["ready"] == 1


def test_an_argument_that_the_server_refuses_ends_its_own_wait_alone(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    queue("orders")

    async def both() -> Notification:
        good = asyncio.ensure_future(first(conn_id, "orders", poll_interval=300))
        bad = asyncio.ensure_future(first(conn_id, "or\0ders", poll_interval=300))
        with pytest.raises(InvalidMessage):
            await bad
        run(conn, verbs.publish("orders", 1))
        return await good

    assert within(30, both())["ready"] == 1


def test_an_unknown_connection_is_an_error_for_all_who_wait_for_it() -> None:
    async def two() -> list[Any]:
        return await asyncio.gather(first("nowhere"), first("nowhere"), return_exceptions=True)

    errors = within(20, two())
    assert [type(error).__name__ for error in errors] == ["AirflowNotFoundException"] * 2


@pytest.mark.parametrize("wrong", [{"schema": "no_such_database"}, {"login": "no_such_role"}], ids=["database", "role"])
def test_a_connection_that_the_server_refuses_is_an_error_and_not_a_silent_wait(
    dsn: str, airflow_connection: Queue, wrong: dict[str, str]
) -> None:
    with pytest.raises(ConnectionFailed, match="does not exist"):
        within(20, first(airflow_connection(dsn, **wrong)))


TASK_LOG: ContextVar[str] = ContextVar("task_log", default="none")


class _Logs(logging.Handler):
    """Notes to which log of a task each record would go."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(TASK_LOG.get())


def test_a_server_that_is_down_is_waited_for_and_said_once_in_the_log_of_a_task(
    dsn: str, airflow_connection: Queue, queue: Queue, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    logs, logger = _Logs(), logging.getLogger("airflow_provider_pgqueue")

    async def as_the_first_task() -> None:
        TASK_LOG.set("the first task")
        waiting = asyncio.create_task(first(airflow_connection(dsn, port=1)))
        await async_until(lambda: logs.seen.count("none") > 1)
        airflow_connection(dsn)
        await waiting

    logger.addHandler(logs)
    try:
        within(20, as_the_first_task())
    finally:
        logger.removeHandler(logs)
    assert logs.seen.count("the first task") == 1
    assert re.search(r"cannot connect yet \(.*port 1 failed: Connection refused.*\); next try in", caplog.text)
    assert "lost the connection" not in caplog.text


def test_a_database_without_the_schema_is_an_error(empty_dsn: str, airflow_connection: Queue) -> None:
    with pytest.raises(Exception, match="pgqueue install"):
        within(20, first(airflow_connection(empty_dsn)))


def test_of_two_hosts_in_one_connection_the_second_is_found_while_the_first_is_silent(
    dsn: str, airflow_connection: Queue, queue: Queue, conn: Connection
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    with socket.socket() as silent:
        # A connection has one port for all its hosts.
        silent.bind(("127.0.0.2", conn.info.port))
        silent.listen()
        conn_id = airflow_connection(
            dsn, host="127.0.0.2,127.0.0.1", extra={"target_session_attrs": "read-write", "connect_timeout": 2}
        )
        assert within(30, first(conn_id))["ready"] == 1


def test_the_session_is_closed_after_the_last_has_left(conn_id: str, queue: Queue, conn: Connection) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)

    async def leave() -> None:
        await first(conn_id, times=HubTimes(linger=0.01))
        await async_until(lambda: not listeners(conn))
        await first(conn_id)
        assert len(listeners(conn)) == 1

    within(20, leave())


def test_a_session_is_kept_for_who_comes_soon_after(conn_id: str, queue: Queue, conn: Connection) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)

    async def come_back() -> None:
        await first(conn_id)
        (before,) = listeners(conn)
        await first(conn_id)
        (after,) = listeners(conn)
        assert before[0] == after[0]

    within(20, come_back())


def test_each_event_loop_has_a_session_of_its_own(conn_id: str, queue: Queue, conn: Connection) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)
    for _ in range(2):
        assert within(20, first(conn_id))["ready"] == 1
    within(20, async_until(lambda: not listeners(conn)))


@pytest.mark.parametrize("wrong", [{"sslmode": "sometimes"}, {"service": "nobody_knows"}, {"connect_timeout": "soon"}])
def test_a_connection_that_can_never_work_ends_the_wait_with_its_id_and_the_fix(
    dsn: str, airflow_connection: Queue, wrong: dict[str, str]
) -> None:
    conn_id = airflow_connection(dsn, extra=wrong)
    said = r"Airflow connection 'pgqueue_default': no connection can be opened: .+\. Correct it"
    with pytest.raises(InvalidArgument, match=said):
        within(20, first(conn_id))
    with pytest.raises(InvalidArgument, match=said):
        PgQueueHook(conn_id).publish("orders", 1)


def test_everybody_who_waits_is_told_once_why_there_is_no_connection(
    dsn: str, airflow_connection: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    conn_id = airflow_connection(dsn, port=1)

    def said() -> int:
        return caplog.text.count(f"waiting for a connection: Airflow connection '{conn_id}': ")

    async def wait() -> None:
        waiting = [asyncio.create_task(first(conn_id)) for _ in range(3)]
        await async_until(lambda: said() == 3)
        assert await async_until_still(said, 2.0) == 3
        for one in waiting:
            one.cancel()

    within(30, wait())
