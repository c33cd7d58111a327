"""The delivery contract, line by line, with real sessions and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    LeaseLost,
    Message,
    Rejected,
    RejectMessage,
    Retry,
    Worker,
    run,
    verbs,
)
from tests.core.consumer.test_worker import working
from tests.waiting import until, until_a_message_expires, until_leases_expire, until_past
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
SHORT = timedelta(milliseconds=300)
LONG = timedelta(minutes=5)

# Leases one message, says so, and waits for a line before it archives it.
CONSUMER = """
import sys
from datetime import timedelta
import psycopg
from airflow_provider_pgqueue.core import run, verbs
conn = psycopg.connect(sys.argv[1], autocommit=True)
(message,) = run(conn, verbs.lease("orders", lease_for=timedelta(seconds=float(sys.argv[2]))))
print(message.id, message.lock_token, flush=True)
sys.stdin.readline()
try:
    print(run(conn, verbs.archive(message.lock_token, [message.id], handled_by="stopped")), flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@contextmanager
def consumer_process(dsn: str, lease_for: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, dsn, str(lease_for)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def archived(conn: Connection) -> list[tuple[int, str, int, str | None]]:
    return conn.execute("SELECT id, result, attempts, handled_by FROM messages.message_archive ORDER BY id").fetchall()


def depth(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM messages.message").fetchone()
    return int(row[0])


def lease(conn: Connection, number: int = 1, lease_for: timedelta = LONG) -> list[Message]:
    return run(conn, verbs.lease("orders", max_messages=number, lease_for=lease_for))


# 1. Acknowledged at commit; in the queue or in the archive, with one result ------------------------------------------


def test_an_aborted_publish_leaves_nothing(connect: Connect, queue: Queue) -> None:
    publisher, other = connect(autocommit=False), connect()
    run(publisher, verbs.publish(queue("orders"), {"n": 1}))
    assert lease(other) == []
    publisher.rollback()
    assert depth(other) == 0
    run(publisher, verbs.publish("orders", {"n": 2}))
    publisher.commit()
    assert [message.body for message in lease(other)] == [{"n": 2}]


def test_a_message_is_in_exactly_one_place_with_one_final_result(connect: Connect, queue: Queue) -> None:
    """Eight sessions publish, lease, archive, release and abandon at once; a ninth looks on."""
    queue("orders", max_attempts=3)
    stop, wrong, published = threading.Event(), [], Counter[int]()

    def work(number: int) -> None:
        conn = connect()
        for turn in range(40):
            published.update(run(conn, verbs.publish_batch("orders", [number] * 5)))
            messages = lease(conn, 7, timedelta(milliseconds=30))
            ids = [message.id for message in messages]
            if not ids:
                continue
            token = messages[0].lock_token
            try:
                match (turn + number) % 4:
                    case 0 | 1:
                        run(conn, verbs.archive(token, ids, outcomes={ids[0]: Rejected("bad")}))
                    case 2:
                        run(conn, verbs.release(token, ids))
                    case 3:
                        pass
            except LeaseLost:
                pass

    def look_on() -> None:
        conn = connect()
        while not stop.wait(0.01):
            row = conn.execute(
                "SELECT (SELECT count(*) FROM messages.message JOIN messages.message_archive USING (id)),"
                " (SELECT count(*) - count(DISTINCT id) FROM messages.message_archive)"
            ).fetchone()
            if row != (0, 0):
                wrong.append(row)

    watcher = threading.Thread(target=look_on)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    stop.set()
    watcher.join()
    conn = connect()
    until(lambda: (lease(conn, 1000, timedelta(milliseconds=1)), run(conn, verbs.maintain()), depth(conn) == 0)[-1])
    assert wrong == []
    assert sorted(row[0] for row in archived(conn)) == sorted(published)
    assert all(row[2] <= 3 for row in archived(conn))


def test_an_immediate_restart_under_load_loses_nothing(cluster: Cluster, dsn: str, queue: Queue) -> None:
    queue("orders", max_attempts=100)
    acknowledged: set[int] = set()
    attempted: set[int] = set()
    stop = threading.Event()

    def publish(start: int) -> None:
        number = start
        while not stop.is_set():
            try:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    while not stop.is_set():
                        attempted.add(number)
                        run(conn, verbs.publish("orders", number))
                        acknowledged.add(number)
                        number += 4
            except Exception:
                number += 4
                stop.wait(0.02)

    def consume() -> None:
        while not stop.is_set():
            try:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    while not stop.is_set():
                        Consumer(queue_name="orders", handle=lambda message: None, lease_for=SHORT).drain(conn)
            except Exception:
                stop.wait(0.02)

    def publishes() -> None:
        enough = len(acknowledged) + 100
        until(lambda: len(acknowledged) > enough, what="100 more messages")

    threads = [threading.Thread(target=publish, args=(start,)) for start in range(4)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        publishes()
        cluster.restart(mode="immediate")
    publishes()
    stop.set()
    for thread in threads:
        thread.join()
    with psycopg.connect(dsn, autocommit=True) as conn:
        kept = Counter(
            row[0]
            for row in conn.execute(
                "SELECT message::int FROM messages.message UNION ALL SELECT message::int FROM messages.message_archive"
            )
        )
    assert acknowledged <= kept.keys() <= attempted
    assert max(kept.values()) == 1


# 2. At least once, at most max_attempts times ------------------------------------------------------------------------


def test_a_message_is_delivered_at_most_max_attempts_times(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    run(conn, verbs.publish(queue("orders", max_attempts=3), 1))
    deliveries: list[int] = []

    def deliver() -> bool:
        for session in (conn, other):
            deliveries.extend(message.attempts for message in lease(session, lease_for=timedelta(milliseconds=1)))
        return bool(archived(conn))

    until(deliver)
    assert deliveries == [1, 2, 3]
    assert [row[1:3] for row in archived(conn)] == [("lock_expired", 3)]


def test_kill_9_of_a_consumer_loses_nothing_and_counts_an_attempt(dsn: str, connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish(queue("orders"), 1))
    with consumer_process(dsn, lease_for=0.5) as process:
        assert lease(conn) == []
        os.kill(process.pid, signal.SIGKILL)
    (message,) = until(lambda: lease(conn))
    assert message.attempts == 2
    assert archived(conn) == []


def test_an_expired_lease_is_found_without_any_maintenance(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    first = lease(conn, 3, SHORT)
    started = time.monotonic()
    again = until(lambda: lease(other, 3))
    assert [message.id for message in again] == [message.id for message in first]
    assert 0.2 < time.monotonic() - started < 1.0
    assert conn.execute("SELECT count(finished_at) FROM messages.maintenance_run").fetchone() == (0,)


# 3. One unexpired lease, and the token is the fence ------------------------------------------------------------------


def test_two_consumers_never_hold_the_same_message(connect: Connect, queue: Queue) -> None:
    run(connect(), verbs.publish_batch(queue("orders"), list(range(2000))))

    def take(number: int) -> list[int]:
        conn, mine = connect(), []
        while messages := lease(conn, 1 + number):
            assert len(messages) <= 1 + number
            mine += [message.id for message in messages]
        return mine

    with ThreadPoolExecutor(16) as pool:
        taken = [id_ for ids in pool.map(take, range(16)) for id_ in ids]
    assert len(taken) == len(set(taken)) == 2000


def test_a_lease_in_an_open_transaction_holds_up_nobody(connect: Connect, queue: Queue) -> None:
    first, second = connect(autocommit=False), connect(options="-c statement_timeout=10s")
    run(second, verbs.publish_batch(queue("orders"), [1, 2, 3, 4]))
    assert [message.body for message in lease(first, 2)] == [1, 2]
    assert [message.body for message in lease(second, 10)] == [3, 4]
    first.rollback()
    assert until(lambda: [message.body for message in lease(second, 10)]) == [1, 2]


@pytest.mark.parametrize("verb", ["archive", "extend", "release"])
def test_a_stale_token_is_refused_and_changes_nothing(connect: Connect, queue: Queue, verb: str) -> None:
    slow, quick = connect(), connect()
    run(slow, verbs.publish(queue("orders"), 1))
    (before,) = lease(slow, lease_for=timedelta(milliseconds=1))
    (now,) = until(lambda: lease(quick))
    stale = {
        "archive": verbs.archive(before.lock_token, [before.id]),
        "extend": verbs.extend(before.lock_token, [before.id], lease_for=LONG),
        "release": verbs.release(before.lock_token, [before.id]),
    }[verb]
    state = "SELECT lock_token, lock_expires_at, attempts FROM messages.message"
    held = quick.execute(state).fetchall()
    with pytest.raises(LeaseLost) as lost:
        run(slow, stale)
    assert lost.value.ids == (before.id,)
    assert quick.execute(state).fetchall() == held
    run(quick, verbs.archive(now.lock_token, [now.id], handled_by="quick"))
    assert [row[1:] for row in archived(quick)] == [("success", 2, "quick")]


@pytest.mark.parametrize("verb", ["archive", "release"])
def test_a_call_that_waited_for_a_row_lock_past_its_lease_is_refused(connect: Connect, queue: Queue, verb: str) -> None:
    conn, blocker = connect(), connect(autocommit=False)
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = lease(conn)
    late = {
        "archive": verbs.archive(message.lock_token, [message.id]),
        "release": verbs.release(message.lock_token, [message.id]),
    }[verb]
    blocker.execute("SELECT FROM messages.message FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, conn, late)
        until(lambda: blocker.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
        blocker.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp()")
        blocker.commit()
        with pytest.raises(LeaseLost):
            call.result()
    assert (depth(blocker), archived(blocker)) == (1, [])


def test_a_transaction_that_began_before_the_end_of_a_lease_extends_it_no_more(connect: Connect, queue: Queue) -> None:
    other, conn = connect(), connect(autocommit=False)
    run(other, verbs.publish(queue("orders"), 1))
    (message,) = run(other, verbs.lease("orders", lease_for=timedelta(milliseconds=300)))
    assert conn.execute("SELECT now() < lock_expires_at FROM messages.message").fetchone() == (True,)
    until_past(other, message.lock_expires_at)
    with pytest.raises(LeaseLost):
        run(conn, verbs.extend(message.lock_token, [message.id], lease_for=LONG))
    conn.commit()
    assert other.execute("SELECT lock_expires_at FROM messages.message").fetchone() == (message.lock_expires_at,)


def test_a_worker_stopped_past_its_lease_changes_nothing(dsn: str, connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish(queue("orders"), 1))
    with consumer_process(dsn, lease_for=0.3) as process:
        os.kill(process.pid, signal.SIGSTOP)
        (message,) = until(lambda: lease(conn))
        run(conn, verbs.archive(message.lock_token, [message.id], handled_by="the other"))
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "LeaseLost"
    assert [row[1:] for row in archived(conn)] == [("success", 2, "the other")]


# 4. Exactly once in one transaction ----------------------------------------------------------------------------------


def test_consume_has_its_effect_exactly_once_in_the_callers_transaction(connect: Connect, queue: Queue) -> None:
    conn, other, mine = connect(), connect(), connect(autocommit=False)
    conn.execute("CREATE TABLE effect (id bigint)")
    run(conn, verbs.publish_batch(queue("orders"), list(range(10))))

    def effect() -> None:
        for message in run(mine, verbs.consume("orders", max_messages=10)):
            mine.execute("INSERT INTO effect VALUES (%s)", [message.id])

    effect()
    assert run(other, verbs.consume("orders", max_messages=10)) == []
    mine.rollback()
    assert conn.execute("SELECT count(*) FROM effect").fetchone() == (0,)
    effect()
    mine.commit()
    assert conn.execute("SELECT count(*), count(DISTINCT id) FROM effect").fetchone() == (10, 10)
    assert [row[1] for row in archived(conn)] == ["success"] * 10


# 5. Order ------------------------------------------------------------------------------------------------------------


def test_messages_come_by_priority_then_oldest_first(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    for body, priority in (("a", 4), ("b", 5), ("c", 4), ("d", 0), ("e", 5)):
        run(conn, verbs.publish(queue("orders"), body, priority=priority))
    assert [message.body for message in lease(conn, 2) + lease(other, 5)] == ["b", "e", "a", "c", "d"]


# 6. NOTIFY and pg_cron add speed only --------------------------------------------------------------------------------


def test_a_worker_needs_neither_notify_nor_maintenance(dsn: str, connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders", notify="off")
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    with working(Worker(conninfo=dsn, consumer=consumer, poll_interval=0.1)):
        run(conn, verbs.publish("orders", 1))
        until(lambda: len(archived(conn)) == 1)


def test_eight_maintenance_runs_at_once_archive_each_message_once(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(2000))))
    lease(conn, 2000, timedelta(milliseconds=1))
    until_leases_expire(conn)
    sessions = [connect() for _ in range(8)]
    # Half of them without the lock that lets one maintenance run in at a time: what it does must be safe by itself.
    calls = ["SELECT messages.maintain()" if number % 2 else "SELECT messages.end_due('orders')" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: pair[0].execute(pair[1]), zip(sessions, calls, strict=True)))
    run(conn, verbs.maintain())
    rows = archived(conn)
    assert depth(conn) == 0
    assert len(rows) == len({row[0] for row in rows}) == 2000
    assert {row[1] for row in rows} == {"lock_expired"}


# 7. Results ----------------------------------------------------------------------------------------------------------


def test_each_outcome_has_its_result(connect: Connect, queue: Queue) -> None:
    conn = connect()
    bodies = ["success", "rejected", "failed", "raises"]
    run(conn, verbs.publish_batch(queue("orders", max_attempts=2), bodies))
    run(conn, verbs.publish("orders", "expired", expires_in=timedelta(milliseconds=1)))
    until_a_message_expires(conn)

    def handle(message: Message) -> Failed | None:
        match message.body:
            case "rejected":
                raise RejectMessage("no good")
            case "failed":
                return Failed("cannot be")
            case "raises":
                raise KeyError("oops")
        return None

    consumer = Consumer(queue_name="orders", handle=handle, on_error={KeyError: Retry(0)})
    counts = consumer.drain(conn)
    results = dict(conn.execute("SELECT message #>> '{}', result FROM messages.message_archive").fetchall())
    assert results == {
        "success": "success",
        "rejected": "rejected",
        "failed": "failed",
        "raises": "failed",
        "expired": "expired",
    }
    assert counts == {"success": 1, "rejected": 1, "failed": 2, "retried": 1}


def test_an_error_at_the_last_attempt_is_archived_as_failed(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish(queue("orders", max_attempts=1), 1))
    (message,) = lease(conn)
    run(conn, verbs.release(message.lock_token, [message.id], details="boom"))
    assert conn.execute("SELECT result, details FROM messages.message_archive").fetchone() == ("failed", "boom")
