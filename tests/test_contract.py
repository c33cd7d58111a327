"""The delivery contract, line by line: each test goes red when its line is broken, and each has two or more sessions.

| line | tests |
|---|---|
| acknowledged at commit; an aborted publish leaves nothing | `TestAcknowledgedAtCommit` |
| in the queue or in the archive, never in neither or both, with one final result | `TestOnePlaceOneResult` |
| survives an immediate restart of PostgreSQL under load | `TestImmediateRestart` |
| at least once, and not again before the lease ended | `TestAtLeastOnce` |
| at most `max_attempts` times | `TestMaxAttempts` |
| at most one unexpired lease | `TestOneLease` |
| the token is the fence | `TestFence` |
| exactly once in the caller's transaction | `TestConsume` |
| order by priority, then oldest first | `TestOrder` |
| NOTIFY and pg_cron add speed, never correctness | `TestWithoutNotifyAndUpkeep` |
| any number of upkeeps at once | `TestUpkeepsAtOnce` |
| the results | `TestResults` |
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import connection, statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.errors import ConnectionFailed, LeaseLost
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, RejectMessage
from airflow_provider_pgqueue.core.statements import Statement
from airflow_provider_pgqueue.core.worker import Worker
from tools.postgres import Cluster

T = TypeVar("T")
Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
SHORT = timedelta(milliseconds=200)

LEASE_AND_SLEEP = """
import sys, time
from datetime import timedelta
from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import connect
conn = connect(sys.argv[1])
(message,) = run(conn, statements.lease("orders", lease_for=timedelta(seconds=float(sys.argv[2]))))
print(message.lock_token, flush=True)
time.sleep(600)
"""
WORK_WHEN_TOLD = """
import sys
from datetime import timedelta
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.worker import Worker
def handle(message):
    print(message.lock_token, flush=True)
    sys.stdin.readline()
consumer = Consumer(queue_name="orders", handle=handle, lease_for=timedelta(seconds=0.3), handled_by="first")
print(dict(Worker(conninfo=sys.argv[1], consumer=consumer).run(until_empty=True)), flush=True)
"""


def until(look: Callable[[], T], seconds: float = 15.0) -> T:
    """Return the first true answer of `look`; fail after a while."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return answer


def lease_one(conn: Connection, **arguments: Any) -> Message:
    """Lease until there is a message: one whose lease expired is found by a lease call soon, not at once."""
    return until(lambda: run(conn, statements.lease("orders", **arguments)))[0]


def scalar(conn: Connection, query: str, *values: Any) -> Any:
    row = conn.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def expire(conn: Connection) -> None:
    """End all leases, as time would."""
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE lock_expires_at IS NOT NULL")


def archived(conn: Connection) -> list[tuple[int, str]]:
    return conn.execute("SELECT id, result FROM messages.message_archive ORDER BY id").fetchall()


def queued(conn: Connection) -> list[int]:
    return [id_ for (id_,) in conn.execute("SELECT id FROM messages.message ORDER BY id")]


def snapshot(conn: Connection) -> list[Any]:
    return conn.execute(
        "SELECT (SELECT array_agg(m::text ORDER BY id) FROM messages.message m),"
        " (SELECT array_agg(a::text ORDER BY id) FROM messages.message_archive a)"
    ).fetchall()


def at_once(number: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(number - 1)` in threads that start together."""
    barrier = threading.Barrier(number)

    def start(index: int) -> T:
        barrier.wait(20)
        return work(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(start, range(number)))


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


class TestAcknowledgedAtCommit:
    """A publish is acknowledged when its transaction commits."""

    def test_a_message_is_seen_by_others_when_its_publisher_commits_and_not_before(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        publisher = connect(autocommit=False)
        id_ = run(publisher, statements.publish("orders", {"n": 1}))
        assert run(conn, statements.lease("orders")) == []
        publisher.commit()
        assert lease_one(conn).id == id_

    @pytest.mark.parametrize("abort", ["rollback", "error", "terminate"])
    def test_an_aborted_publish_leaves_nothing(
        self, queue: Queue, conn: Connection, connect: Connect, abort: str
    ) -> None:
        queue("orders")
        conn.execute("LISTEN new_message")
        publisher = connect(autocommit=False)
        run(publisher, statements.publish("orders", 1))
        run(publisher, statements.publish_batch("orders", [2, 3], priority=7))
        match abort:
            case "rollback":
                publisher.rollback()
            case "error":
                with pytest.raises(psycopg.errors.DivisionByZero):
                    publisher.execute("SELECT 1 / 0")
                publisher.commit()
            case "terminate":
                conn.execute("SELECT pg_terminate_backend(%s, 10000)", [publisher.info.backend_pid])
        assert run(conn, statements.lease("orders", max_messages=10)) == []
        assert (queued(conn), archived(conn)) == ([], [])
        assert list(conn.notifies(timeout=0.1)) == []

    def test_a_savepoint_that_is_rolled_back_takes_only_its_own_publish_along(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        publisher = connect(autocommit=False)
        kept = run(publisher, statements.publish("orders", "kept"))
        with suppress(ZeroDivisionError), publisher.transaction():
            run(publisher, statements.publish("orders", "undone"))
            raise ZeroDivisionError
        publisher.commit()
        assert queued(conn) == [kept]

    def test_a_publisher_that_commits_long_after_others_were_consumed_loses_nothing(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        slow = connect(autocommit=False)
        late = run(slow, statements.publish("orders", "late"))
        run(conn, statements.publish_batch("orders", list(range(500))))
        while messages := run(conn, statements.lease("orders", max_messages=50)):
            run(conn, statements.archive(messages[0].lock_token, [message.id for message in messages]))
        slow.commit()
        assert lease_one(conn).id == late


class TestOnePlaceOneResult:
    """From then on the message is in the queue or in the archive, with exactly one final result."""

    def test_no_session_ever_sees_a_message_in_neither_or_in_both(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=3)
        ids = set(run(conn, statements.publish_batch("orders", list(range(300)))))
        done = threading.Event()
        looks: list[int] = []

        def watch() -> None:
            session = connect()
            while not done.is_set():
                rows = session.execute(
                    "SELECT id FROM messages.message UNION ALL SELECT id FROM messages.message_archive"
                ).fetchall()
                assert sorted(id_ for (id_,) in rows) == sorted(ids)
                looks.append(len(rows))

        def finish(number: int) -> None:
            session = connect()
            while queued(session):
                messages = run(session, statements.lease("orders", max_messages=5, lease_for=timedelta(seconds=0.02)))
                if not messages:
                    continue
                token, some = messages[0].lock_token, [message.id for message in messages]
                with suppress(LeaseLost):
                    match random.Random(some[0]).randrange(4):
                        case 0:
                            run(session, statements.release(token, some))
                        case 1:
                            run(session, statements.archive(token, some, outcomes={some[0]: Rejected("odd")}))
                        case 2:
                            run(session, statements.archive(token, some))
                        case 3:
                            run(session, statements.upkeep())

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                at_once(3, finish)
            finally:
                done.set()
            watching.result()
        assert len(looks) > 10
        assert [id_ for id_, _ in archived(conn)] == sorted(ids)

    def test_two_sessions_that_archive_with_the_same_token_leave_one_result(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        token = lease_one(conn).lock_token
        assert token is not None
        slow = connect(autocommit=False)
        run(slow, statements.archive(token, [id_], result="rejected"))
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(run, conn, statements.archive(token, [id_]))
            until(lambda: scalar(slow, "SELECT count(*) FROM pg_locks WHERE NOT granted"))
            slow.commit()
            with pytest.raises(LeaseLost):
                second.result()
        assert archived(conn) == [(id_, "rejected")]

    def test_a_cancelled_archive_leaves_the_message_in_the_queue(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        worker = connect(autocommit=False)
        message = lease_one(worker)
        worker.commit()
        assert message.lock_token is not None
        run(worker, statements.archive(message.lock_token, [id_]))
        conn.execute("SELECT pg_terminate_backend(%s, 10000)", [worker.info.backend_pid])
        assert (queued(conn), archived(conn)) == ([id_], [])


class TestImmediateRestart:
    """A crash of PostgreSQL loses nothing that was acknowledged."""

    def test_an_immediate_restart_under_load_loses_nothing_and_archives_nothing_twice(
        self, cluster: Cluster, dsn: str, queue: Queue
    ) -> None:
        queue("orders", max_attempts=100)
        stop = threading.Event()
        attempted: list[set[int]] = [set() for _ in range(3)]
        acknowledged: list[set[int]] = [set() for _ in range(3)]
        finished: list[Counter[int]] = [Counter() for _ in range(2)]

        def publish(number: int) -> None:
            keys = iter(range(number * 1_000_000, (number + 1) * 1_000_000))
            while not stop.is_set():
                with suppress(ConnectionFailed, psycopg.OperationalError), connection.connect(dsn) as session:
                    while not stop.is_set():
                        batch = [next(keys) for _ in range(3)]
                        attempted[number].update(batch)
                        run(session, statements.publish_batch("orders", batch))
                        acknowledged[number].update(batch)

        def consume(number: int) -> None:
            while not stop.is_set():
                with suppress(ConnectionFailed, psycopg.OperationalError), connection.connect(dsn) as session:
                    while not stop.is_set():
                        some = run(session, statements.lease("orders", max_messages=20, lease_for=timedelta(seconds=1)))
                        if some:
                            run(session, statements.archive(some[0].lock_token, [message.id for message in some]))
                            finished[number].update(message.body for message in some)

        with ThreadPoolExecutor(5) as pool:
            loads = [*(pool.submit(publish, n) for n in range(3)), *(pool.submit(consume, n) for n in range(2))]
            try:
                for _ in range(2):
                    before = sum(map(len, acknowledged)), sum(map(len, finished))
                    until(lambda: sum(map(len, acknowledged)) > before[0] + 300)
                    until(lambda: sum(map(len, finished)) > before[1] + 100)
                    cluster.restart(mode="immediate")
                after = sum(map(len, acknowledged))
                until(lambda: sum(map(len, acknowledged)) > after + 30)
            finally:
                stop.set()
            for load in loads:
                load.result()

        with connection.connect(dsn) as conn:
            present = Counter(
                dict(
                    conn.execute(
                        "SELECT key, count(*) FROM (SELECT message::int AS key FROM messages.message"
                        " UNION ALL SELECT message::int FROM messages.message_archive) every GROUP BY key"
                    ).fetchall()
                )
            )
            in_archive = {key for (key,) in conn.execute("SELECT message::int FROM messages.message_archive")}
        assert set().union(*acknowledged) - set(present) == set()
        assert set(present) - set().union(*attempted) == set()
        assert [key for key, count in present.items() if count > 1] == []
        assert sum(finished, Counter()).most_common(1)[0][1] == 1
        assert set(sum(finished, Counter())) - in_archive == set()


class TestAtLeastOnce:
    """A message is delivered again only after its lease expired or was released."""

    def test_kill_9_of_a_consumer_loses_nothing(self, queue: Queue, conn: Connection, dsn: str) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", {"n": 1}))
        with process(LEASE_AND_SLEEP, dsn, "0.5") as consumer:
            token = UUID(read_line(consumer))
            consumer.kill()
            consumer.wait()
            again = lease_one(conn)
        assert (again.id, again.body, again.attempts) == (id_, {"n": 1}, 2)
        assert again.lock_token != token

    def test_a_message_is_not_delivered_again_while_its_lease_lasts_even_if_its_consumer_is_dead(
        self, queue: Queue, conn: Connection, dsn: str
    ) -> None:
        queue("orders")
        run(conn, statements.publish("orders", 1))
        with process(LEASE_AND_SLEEP, dsn, "1") as consumer:
            read_line(consumer)
            consumer.kill()
            consumer.wait()
        ends_at = scalar(conn, "SELECT lock_expires_at FROM messages.message")
        again = lease_one(conn, lease_for=timedelta(seconds=10))
        assert again.lock_expires_at is not None
        assert again.lock_expires_at - timedelta(seconds=10) >= ends_at

    def test_a_consumer_whose_session_dies_inside_its_lease_call_has_taken_nothing(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        other = connect(autocommit=False)
        assert lease_one(other).id == id_
        assert run(conn, statements.lease("orders")) == []
        conn.execute("SELECT pg_terminate_backend(%s, 10000)", [other.info.backend_pid])
        again = lease_one(conn)
        assert (again.id, again.attempts) == (id_, 1)

    def test_a_released_message_is_delivered_again_at_once_or_after_its_delay(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        first = lease_one(conn)
        assert first.lock_token is not None
        run(conn, statements.release(first.lock_token, [id_]))
        second = lease_one(connect())
        assert second.lock_token is not None
        run(conn, statements.release(second.lock_token, [id_], delay=timedelta(seconds=0.5)))
        ready_at = scalar(conn, "SELECT visible_at FROM messages.message")
        third = lease_one(conn, lease_for=timedelta(seconds=10))
        assert third.lock_expires_at is not None
        assert third.lock_expires_at - timedelta(seconds=10) >= ready_at
        assert [first.attempts, second.attempts, third.attempts] == [1, 2, 3]


class TestMaxAttempts:
    """A message is delivered at most `max_attempts` times, then it is dead."""

    def test_an_expired_lease_is_a_dead_message_when_max_attempts_is_1(
        self, queue: Queue, conn: Connection, dsn: str
    ) -> None:
        queue("orders", max_attempts=1)
        id_ = run(conn, statements.publish("orders", 1))
        with process(LEASE_AND_SLEEP, dsn, "0.2") as consumer:
            read_line(consumer)
            consumer.kill()
            consumer.wait()
        deliveries = []
        until(lambda: deliveries.extend(run(conn, statements.lease("orders"))) or archived(conn))
        assert deliveries == []
        assert (archived(conn), queued(conn)) == ([(id_, "lock_expired")], [])

    @pytest.mark.parametrize("max_attempts", [1, 2, 3])
    def test_consumers_that_are_killed_over_and_over_get_a_message_exactly_max_attempts_times(
        self, queue: Queue, conn: Connection, connect: Connect, max_attempts: int
    ) -> None:
        queue("orders", max_attempts=max_attempts)
        id_ = run(conn, statements.publish("orders", 1))
        attempts = []

        def lease_and_die() -> bool:
            session = connect()
            attempts.extend(m.attempts for m in run(session, statements.lease("orders", lease_for=SHORT / 4)))
            session.close()
            return not queued(conn)

        until(lease_and_die)
        assert attempts == list(range(1, max_attempts + 1))
        assert archived(conn) == [(id_, "lock_expired")]
        assert scalar(conn, "SELECT attempts FROM messages.message_archive") == max_attempts

    def test_a_release_counts_too_and_the_last_one_archives_as_failed(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=3)
        id_ = run(conn, statements.publish("orders", 1))
        for session in (connect(), connect(), connect()):
            token = lease_one(session).lock_token
            assert token is not None
            run(session, statements.release(token, [id_], details="no luck"))
        assert run(conn, statements.lease("orders")) == []
        assert archived(conn) == [(id_, "failed")]
        assert scalar(conn, "SELECT details FROM messages.message_archive") == "no luck"

    def test_come_back_later_may_be_said_any_number_of_times(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=1)
        id_ = run(conn, statements.publish("orders", 1))
        for session in [conn, connect()] * 5:
            message = lease_one(session)
            assert message.attempts == 1
            assert message.lock_token is not None
            run(session, statements.release(message.lock_token, [id_], count_attempt=False))
        assert (queued(conn), archived(conn)) == ([id_], [])

    def test_a_message_that_kills_its_consumers_does_not_starve_its_neighbours(
        self, queue: Queue, conn: Connection, dsn: str
    ) -> None:
        queue("orders", max_attempts=2)
        poison = run(conn, statements.publish("orders", "poison"))
        others = run(conn, statements.publish_batch("orders", list(range(20))))
        for _ in range(2):
            with process(LEASE_AND_SLEEP, dsn, "0.2") as consumer:
                until(lambda child=consumer: read_line(child))
                consumer.kill()
                consumer.wait()
                until(lambda: scalar(conn, "SELECT bool_and(lock_expires_at < clock_timestamp()) "
                                           "FROM messages.message WHERE lock_expires_at IS NOT NULL"))  # fmt: skip
        counts = Consumer(queue_name="orders", handle=lambda message: None).drain(conn)
        until(lambda: run(conn, statements.upkeep()) and not queued(conn))
        assert dict(archived(conn))[poison] == "lock_expired"
        assert {dict(archived(conn))[id_] for id_ in others} <= {"success", "lock_expired"}
        assert counts["success"] >= len(others) - 1


class TestOneLease:
    """At any instant at most one unexpired lease, by the clock of the database."""

    def test_16_consumers_at_once_lease_2000_messages_without_one_of_them_twice(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        ids = run(conn, statements.publish_batch("orders", list(range(2000))))
        sessions = [connect() for _ in range(16)]

        def lease_all(number: int) -> list[Message]:
            taken: list[Message] = []
            while messages := run(sessions[number], statements.lease("orders", max_messages=1 + number)):
                assert len(messages) <= 1 + number
                assert len({message.lock_token for message in messages}) == 1
                taken += messages
            return taken

        taken = [message for messages in at_once(16, lease_all) for message in messages]
        # A call may find nothing while all that is left is locked by calls in progress.
        taken += run(conn, statements.lease("orders", max_messages=2000))
        assert Counter(message.id for message in taken) == Counter(ids)

    def test_leases_of_one_message_never_overlap_while_they_expire_and_are_extended(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=1000)
        ids = run(conn, statements.publish_batch("orders", list(range(200))))
        sessions = [connect() for _ in range(8)]
        held: list[list[tuple[int, datetime, datetime]]] = [[] for _ in range(8)]
        done: list[list[int]] = [[] for _ in range(8)]
        lease_for = timedelta(milliseconds=30)

        def work(number: int) -> None:
            chance = random.Random(number)
            session, deadline = sessions[number], time.monotonic() + 30
            while queued(session):
                assert time.monotonic() < deadline
                messages = run(session, statements.lease("orders", max_messages=8, lease_for=lease_for))
                if not messages:
                    continue
                begin, token = messages[0].lock_expires_at - lease_for, messages[0].lock_token
                some = [message.id for message in messages]
                ends = dict.fromkeys(some, messages[0].lock_expires_at)
                if chance.random() < 0.5:
                    for id_ in some:
                        with suppress(LeaseLost):
                            run(session, statements.extend(token, [id_], lease_for=lease_for))
                            ends[id_] = scalar(
                                session,
                                "SELECT greatest(%s, max(lock_expires_at)) FROM messages.message"
                                " WHERE id = %s AND lock_token = %s",
                                ends[id_],
                                id_,
                                token,
                            )
                if chance.random() < 0.3:
                    try:
                        done[number] += run(session, statements.archive(token, some))
                    except LeaseLost as error:
                        done[number] += set(some) - set(error.ids)
                held[number] += [(id_, begin, ends[id_]) for id_ in some]

        at_once(8, work)
        finished = [id_ for some in done for id_ in some]
        intervals = sorted(interval for some in held for interval in some)
        overlaps = [
            (one, other)
            for one, other in pairwise(intervals)
            if one[0] == other[0] and other[1] < one[2]
        ]
        assert overlaps == []
        assert Counter(finished) == Counter(ids)
        assert archived(conn) == [(id_, "success") for id_ in ids]
        assert len(intervals) > len(ids)
        assert sum(attempts for (attempts,) in conn.execute("SELECT attempts FROM messages.message_archive")) == len(
            intervals
        )

    def test_every_lease_call_gets_a_token_of_its_own(self, queue: Queue, conn: Connection, connect: Connect) -> None:
        queue("orders")
        run(conn, statements.publish_batch("orders", list(range(20))))
        sessions = [connect(), connect()]
        tokens = [lease_one(sessions[number % 2]).lock_token for number in range(20)]
        assert len(set(tokens)) == 20


STALE: dict[str, Callable[[UUID, int], Statement[Any]]] = {
    "archive": lambda token, id_: statements.archive(token, [id_]),
    "extend": lambda token, id_: statements.extend(token, [id_], lease_for=timedelta(hours=1)),
    "release": lambda token, id_: statements.release(token, [id_]),
}


class TestFence:
    """Archive, extend and release need the token of the lease in force; who lost it changes nothing."""

    @pytest.mark.parametrize("verb", STALE)
    def test_a_token_whose_lease_was_taken_over_is_refused_and_changes_nothing(
        self, queue: Queue, conn: Connection, connect: Connect, verb: str
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        stale = lease_one(conn, lease_for=SHORT).lock_token
        assert stale is not None
        winner = lease_one(connect())
        before = snapshot(conn)
        with pytest.raises(LeaseLost) as lost:
            run(conn, STALE[verb](stale, id_))
        assert lost.value.ids == (id_,)
        assert snapshot(conn) == before
        assert winner.lock_token is not None
        assert run(conn, statements.archive(winner.lock_token, [id_])) == [id_]

    @pytest.mark.parametrize("verb", STALE)
    def test_a_token_whose_lease_expired_is_refused_even_if_nobody_took_over(
        self, queue: Queue, conn: Connection, connect: Connect, verb: str
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        token = lease_one(conn).lock_token
        assert token is not None
        expire(connect())
        before = snapshot(conn)
        with pytest.raises(LeaseLost):
            run(conn, STALE[verb](token, id_))
        assert snapshot(conn) == before

    @pytest.mark.parametrize("verb", STALE)
    def test_a_token_is_refused_after_its_message_was_archived(
        self, queue: Queue, conn: Connection, connect: Connect, verb: str
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        token = lease_one(conn).lock_token
        assert token is not None
        run(connect(), statements.archive(token, [id_], result="rejected"))
        before = snapshot(conn)
        with pytest.raises(LeaseLost):
            run(conn, STALE[verb](token, id_))
        assert snapshot(conn) == before

    @pytest.mark.parametrize("verb", STALE)
    def test_a_call_that_waited_for_a_row_lock_past_its_lease_is_refused(
        self, queue: Queue, conn: Connection, connect: Connect, verb: str
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        token = lease_one(conn, lease_for=timedelta(seconds=1)).lock_token
        assert token is not None
        blocker = connect(autocommit=False)
        blocker.execute("SELECT FROM messages.message FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(run, conn, STALE[verb](token, id_))
            until(lambda: scalar(blocker, "SELECT count(*) FROM pg_locks WHERE NOT granted"))
            blocker.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp()")
            blocker.commit()
            with pytest.raises(LeaseLost):
                late.result()
        assert (queued(conn), archived(conn)) == ([id_], [])

    def test_the_messages_of_a_batch_that_are_still_held_are_archived_when_others_are_lost(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        ids = run(conn, statements.publish_batch("orders", [1, 2, 3]))
        token = run(conn, statements.lease("orders", max_messages=3))[0].lock_token
        assert token is not None
        connect().execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE id = %s", [ids[1]])
        with pytest.raises(LeaseLost) as lost:
            run(conn, statements.archive(token, ids))
        assert lost.value.ids == (ids[1],)
        assert (queued(conn), archived(conn)) == ([ids[1]], [(ids[0], "success"), (ids[2], "success")])

    @pytest.mark.parametrize("winner_finishes", [False, True])
    def test_a_worker_stopped_past_its_lease_and_then_continued_changes_nothing(
        self, queue: Queue, conn: Connection, dsn: str, winner_finishes: bool
    ) -> None:
        queue("orders")
        id_ = run(conn, statements.publish("orders", 1))
        with process(WORK_WHEN_TOLD, dsn) as worker:
            stale = UUID(read_line(worker))
            worker.send_signal(signal.SIGSTOP)
            winner = lease_one(conn, locked_by="second")
            assert winner.lock_token not in (None, stale)
            if winner_finishes:
                run(conn, statements.archive(winner.lock_token, [id_], result="rejected"))
            before = snapshot(conn)
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
            worker.send_signal(signal.SIGCONT)
            assert read_line(worker) == str({"lost": 1})
        assert snapshot(conn) == before
        if not winner_finishes:
            run(conn, statements.archive(winner.lock_token, [id_], result="rejected"))
        assert archived(conn) == [(id_, "rejected")]
        assert scalar(conn, "SELECT handled_by FROM messages.message_archive") == "second"


class TestConsume:
    """Exactly once where the effect and the archive are in the same transaction."""

    def test_a_rollback_gives_the_messages_back(self, queue: Queue, conn: Connection, connect: Connect) -> None:
        queue("orders", max_attempts=1)
        ids = run(conn, statements.publish_batch("orders", [1, 2, 3]))
        consumer = connect(autocommit=False)
        assert [m.id for m in run(consumer, statements.consume("orders", max_messages=10))] == ids
        assert run(conn, statements.lease("orders")) == []
        assert run(conn, statements.consume("orders")) == []
        consumer.rollback()
        assert archived(conn) == []
        again = until(lambda: run(conn, statements.consume("orders", max_messages=10)))
        assert [(message.id, message.attempts) for message in again] == [(id_, 1) for id_ in ids]
        assert archived(conn) == [(id_, "success") for id_ in ids]

    @pytest.mark.parametrize("end", ["commit", "rollback", "terminate"])
    def test_the_effect_and_the_success_are_both_there_or_both_not(
        self, queue: Queue, conn: Connection, connect: Connect, end: str
    ) -> None:
        queue("orders")
        conn.execute("CREATE TABLE effect (message_id bigint)")
        id_ = run(conn, statements.publish("orders", 1))
        consumer = connect(autocommit=False)
        for message in run(consumer, statements.consume("orders")):
            consumer.execute("INSERT INTO effect VALUES (%s)", [message.id])
        match end:
            case "commit":
                consumer.commit()
            case "rollback":
                consumer.rollback()
            case "terminate":
                conn.execute("SELECT pg_terminate_backend(%s, 10000)", [consumer.info.backend_pid])
        effects = [effect for (effect,) in conn.execute("SELECT message_id FROM effect")]
        assert effects == [id_ for id_, _ in archived(conn)] == ([id_] if end == "commit" else [])
        assert queued(conn) == ([] if end == "commit" else [id_])

    def test_consumers_that_roll_back_now_and_then_leave_each_effect_exactly_once(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=1)
        conn.execute("CREATE TABLE effect (message_id bigint)")
        ids = run(conn, statements.publish_batch("orders", list(range(400))))
        sessions = [connect() for _ in range(6)]

        def consume(number: int) -> int:
            chance, session, rolled_back = random.Random(number), sessions[number], 0
            deadline = time.monotonic() + 30
            while queued(session):
                assert time.monotonic() < deadline
                with session.transaction(force_rollback=chance.random() < 0.3) as transaction:
                    messages = run(session, statements.consume("orders", max_messages=7))
                    for message in messages:
                        session.execute("INSERT INTO effect VALUES (%s)", [message.id])
                rolled_back += len(messages) if transaction.force_rollback else 0
            return rolled_back

        assert sum(at_once(6, consume)) > 0
        effects = [effect for (effect,) in conn.execute("SELECT message_id FROM effect ORDER BY 1")]
        assert effects == ids
        assert archived(conn) == [(id_, "success") for id_ in ids]

    def test_an_archive_in_the_transaction_of_the_effect_refuses_after_the_lease_was_lost(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        conn.execute("CREATE TABLE effect (message_id bigint)")
        id_ = run(conn, statements.publish("orders", 1))
        slow = connect()
        token = lease_one(slow, lease_for=SHORT).lock_token
        winner = lease_one(conn)
        assert token is not None
        assert winner.lock_token is not None
        with pytest.raises(LeaseLost), slow.transaction():
            slow.execute("INSERT INTO effect VALUES (%s)", [id_])
            run(slow, statements.archive(token, [id_]))
        with conn.transaction():
            conn.execute("INSERT INTO effect VALUES (%s)", [id_])
            run(conn, statements.archive(winner.lock_token, [id_]))
        assert conn.execute("SELECT message_id FROM effect").fetchall() == [(id_,)]


class TestOrder:
    """By priority, then oldest first."""

    def test_the_highest_priority_comes_first_then_the_oldest(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        published = [(priority, run(conn, statements.publish("orders", 1, priority=priority)))
                     for priority in (0, 5, -3, 5, 0, 100, -100, 0)]  # fmt: skip
        expected = [id_ for priority, id_ in sorted(published, key=lambda one: (-one[0], one[1]))]
        one, other = connect(), connect()
        leased = [message.id for message in run(one, statements.lease("orders", max_messages=3))]
        leased += [message.id for message in run(other, statements.lease("orders", max_messages=3))]
        leased += [message.id for message in run(one, statements.consume("orders", max_messages=10))]
        assert leased == expected

    def test_a_batch_keeps_its_order(self, queue: Queue, conn: Connection, connect: Connect) -> None:
        queue("orders")
        ids = run(conn, statements.publish_batch("orders", list(range(100))))
        assert ids == sorted(ids)
        leased = run(connect(), statements.lease("orders", max_messages=100))
        assert [(message.id, message.body) for message in leased] == list(zip(ids, range(100), strict=True))

    def test_what_was_released_keeps_its_place(self, queue: Queue, conn: Connection, connect: Connect) -> None:
        queue("orders")
        ids = run(conn, statements.publish_batch("orders", [1, 2, 3]))
        first = lease_one(conn)
        assert first.lock_token is not None
        run(conn, statements.release(first.lock_token, [first.id]))
        assert [lease_one(session).id for session in (connect(), conn, conn)] == ids


class TestWithoutNotifyAndUpkeep:
    """NOTIFY and pg_cron add speed, never correctness."""

    def test_a_lease_call_finds_an_expired_lease_with_no_upkeep_running(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", notify="off")
        abandoned = run(conn, statements.publish_batch("orders", [1, 2, 3]))
        assert len(run(conn, statements.lease("orders", max_messages=3, lease_for=SHORT))) == 3
        other, found = connect(), set[int]()
        until(lambda: found.update(m.id for m in run(other, statements.lease("orders", max_messages=2)))
              or found == set(abandoned))  # fmt: skip
        assert scalar(conn, "SELECT count(*) FROM messages.upkeep_run") == 0

    def test_an_expired_lease_is_found_while_new_messages_keep_consumers_busy(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", notify="off")
        abandoned = run(conn, statements.publish("orders", "abandoned"))
        lease_one(conn, lease_for=SHORT)
        other = connect()

        def busy() -> bool:
            run(conn, statements.publish_batch("orders", list(range(20))))
            messages = run(other, statements.lease("orders", max_messages=10))
            run(other, statements.archive(messages[0].lock_token, [message.id for message in messages]))
            return abandoned in [message.id for message in messages]

        assert until(busy)

    def test_a_polling_worker_handles_what_nothing_rang_for(self, queue: Queue, conn: Connection, dsn: str) -> None:
        queue("orders", notify="off")
        conn.execute("LISTEN new_message")
        handled: list[int] = []
        consumer = Consumer(queue_name="orders", handle=lambda message: handled.append(message.id))
        worker = Worker(conninfo=dsn, consumer=consumer, poll_interval=0.1)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(worker.run)
            try:
                until(lambda: worker_looked(conn))
                published = [run(conn, statements.publish("orders", 1))]
                until(lambda: handled == published)
                published.append(run(conn, statements.publish("orders", 2, delay=SHORT)))
                until(lambda: handled == published)
            finally:
                worker.stop()
            assert running.result(10) == Counter(success=2)
        assert list(conn.notifies(timeout=0.1)) == []

    def test_a_polling_worker_takes_over_from_a_killed_one(self, queue: Queue, conn: Connection, dsn: str) -> None:
        queue("orders", notify="off")
        id_ = run(conn, statements.publish("orders", 1))
        handled: list[tuple[int, int]] = []
        consumer = Consumer(queue_name="orders", handle=lambda m: handled.append((m.id, m.attempts)))
        worker = Worker(conninfo=dsn, consumer=consumer, poll_interval=0.1)
        with process(LEASE_AND_SLEEP, dsn, "0.3") as killed, ThreadPoolExecutor(1) as pool:
            read_line(killed)
            killed.kill()
            running = pool.submit(worker.run)
            try:
                until(lambda: handled)
            finally:
                worker.stop()
            running.result(10)
        assert handled == [(id_, 2)]
        assert archived(conn) == [(id_, "success")]

    def test_a_forged_notification_delivers_nothing(self, queue: Queue, conn: Connection, dsn: str) -> None:
        queue("orders", notify="off")
        handled: list[int] = []
        consumer = Consumer(queue_name="orders", handle=lambda message: handled.append(message.id))
        worker = Worker(conninfo=dsn, consumer=consumer, poll_interval=60)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(worker.run)
            try:
                until(lambda: worker_looked(conn))
                later = run(conn, statements.publish("orders", 1, delay=timedelta(hours=1)))
                for payload in (str(later), "999999999", "'; DROP TABLE messages.message; --", ""):
                    conn.execute("SELECT pg_notify('new_message', %s)", [payload])
                real = run(conn, statements.publish("orders", 2))
                conn.execute("NOTIFY new_message, 'a bell is only a bell'")
                until(lambda: handled)
            finally:
                worker.stop()
            running.result(10)
        assert handled == [real]
        assert queued(conn) == [later]


def worker_looked(conn: Connection) -> bool:
    """Say whether a worker listens and has looked, so that what comes now comes after its first look."""
    return bool(
        scalar(
            conn,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            " AND application_name = 'pgqueue listener' AND query LIKE '%%ready_queues%%'",
        )
    )


class TestUpkeepsAtOnce:
    """The upkeep may run any number of times at once, beside consumers."""

    @pytest.mark.parametrize("consumers", [0, 4])
    def test_eight_upkeeps_at_once_archive_each_of_2000_expired_messages_once(
        self, queue: Queue, conn: Connection, connect: Connect, consumers: int
    ) -> None:
        queue("orders", max_attempts=1)
        ids = run(conn, statements.publish_batch("orders", list(range(2000))))
        assert len(run(conn, statements.lease("orders", max_messages=2000))) == 2000
        expire(conn)
        sessions = [connect() for _ in range(8 + consumers)]

        def clean(number: int) -> int:
            if number < 8:
                return int(run(sessions[number], statements.upkeep()).get("archived", 0))
            return len(run(sessions[number], statements.lease("orders", max_messages=100)))

        swept = at_once(8 + consumers, clean)
        run(conn, statements.upkeep())
        assert archived(conn) == [(id_, "lock_expired") for id_ in ids]
        assert queued(conn) == []
        assert scalar(conn, "SELECT count(*) FROM messages.dead_message") == 2000
        assert sum(swept[8:]) == 0
        if not consumers:
            assert sum(swept) == 2000

    def test_sweeps_that_really_run_at_once_archive_each_message_once(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=1)
        ids = run(conn, statements.publish_batch("orders", list(range(2000))))
        run(conn, statements.lease("orders", max_messages=2000))
        expire(conn)
        sessions = [connect() for _ in range(8)]
        swept = at_once(8, lambda n: scalar(sessions[n], "SELECT archived FROM messages.sweep_all('orders', 0::int2, 1)"))
        assert sum(swept) == 2000
        assert archived(conn) == [(id_, "lock_expired") for id_ in ids]

    def test_an_upkeep_frees_expired_leases_that_have_attempts_left(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=2)
        ids = run(conn, statements.publish_batch("orders", list(range(50))))
        run(conn, statements.lease("orders", max_messages=50))
        expire(conn)
        assert run(connect(), statements.upkeep())["freed"] == 50
        assert [message.id for message in run(conn, statements.lease("orders", max_messages=50))] == ids


class TestResults:
    """`success`, `rejected`, `failed`, `lock_expired` and `expired`, each for ever."""

    def test_a_rejected_message_is_never_retried(self, queue: Queue, conn: Connection, connect: Connect) -> None:
        queue("orders", max_attempts=5)
        ids = run(conn, statements.publish_batch("orders", ["bad", "good"]))
        seen: list[int] = []

        def handle(message: Message) -> None:
            seen.append(message.id)
            if message.body == "bad":
                raise RejectMessage("no such order")

        for session in (conn, connect()):
            Consumer(queue_name="orders", handle=handle).drain(session)
            run(session, statements.upkeep())
        assert seen == ids
        assert archived(conn) == [(ids[0], "rejected"), (ids[1], "success")]
        assert scalar(conn, "SELECT details FROM messages.message_archive WHERE result = 'rejected'") == "no such order"

    def test_each_result_is_reached_on_its_own_way_and_all_but_success_are_dead(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders", max_attempts=1)
        good, bad, broken, abandoned = run(conn, statements.publish_batch("orders", [1, 2, 3, 4]))
        late = run(conn, statements.publish("orders", 5, expires_in=SHORT))
        token = run(conn, statements.lease("orders", max_messages=4))[0].lock_token
        assert token is not None
        run(conn, statements.archive(token, [good, bad, broken], outcomes={bad: Rejected("r"), broken: Failed("f")}))
        expire(conn)
        other = connect()
        until(lambda: not run(other, statements.lease("orders")) and not queued(conn))
        assert dict(archived(conn)) == {
            good: "success",
            bad: "rejected",
            broken: "failed",
            abandoned: "lock_expired",
            late: "expired",
        }
        dead = {id_ for (id_,) in conn.execute("SELECT id FROM messages.dead_message")}
        assert dead == {bad, broken, abandoned, late}

    def test_a_requeued_message_is_a_new_one_and_the_old_result_stays(
        self, queue: Queue, conn: Connection, connect: Connect
    ) -> None:
        queue("orders")
        old = run(conn, statements.publish("orders", {"n": 0}))
        token = lease_one(conn).lock_token
        assert token is not None
        run(conn, statements.archive(token, [old], result="failed"))
        (dead,) = run(conn, statements.lease_dead("orders"))
        assert run(connect(), statements.lease_dead("orders")) == []
        (requeued,) = run(conn, statements.requeue(dead.lock_token, [old], bodies={old: {"n": 1}}))
        again = lease_one(connect())
        assert (again.id, again.body, again.attempts, again.requeues) == (requeued.new_id, {"n": 1}, 1, 1)
        assert archived(conn) == [(old, "failed")]
        with pytest.raises(LeaseLost):
            run(conn, statements.requeue(dead.lock_token, [old]))
