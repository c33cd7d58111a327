"""Groups: in order, one in flight, and nothing is stranded, though no maintenance runs."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from airflow_provider_pgqueue.core.verbs import Statement
from tests.core.lease.test_marks import bodies, scan_again, scan_later
from tests.waiting import until, until_leases_expire

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
T = TypeVar("T")
HOUR = timedelta(hours=1)


@pytest.fixture
def other(connect: Connect) -> Connection:
    """A second session, which waits for nobody."""
    return connect(options="-c lock_timeout=1s")


@pytest.fixture
def idle(connect: Connect) -> Connection:
    """A session that leaves its transactions open."""
    return connect(autocommit=False)


def publish(conn: Connection, *bodies: str) -> list[int]:
    """Publish texts such as `a1`, whose first letter is the group."""
    return run(conn, verbs.publish_batch("orders", bodies, group_keys=[body[0] for body in bodies]))


def lease(conn: Connection, **arguments: Any) -> list[Message]:
    return run(conn, verbs.lease("orders", **({"max_messages": 100} | arguments)))


def finish(conn: Connection, message: Message, result: str = "success") -> None:
    assert run(conn, verbs.archive(message.lock_token, [message.id], result=result)) == [message.id]


def drained(conn: Connection) -> dict[str, list[Any]]:
    """Finish all that waits, and return the bodies of each group in the order in which they were leased."""
    seen: defaultdict[str, list[Any]] = defaultdict(list)

    def empty() -> bool:
        scan_again(conn)
        for message in lease(conn):
            seen[str(message.group_key)].append(message.body)
            finish(conn, message)
        return conn.execute("SELECT FROM messages.message").rowcount == 0

    until(empty, timeout=10, what="an empty queue")
    return dict(seen)


def test_one_message_of_a_group_is_leased_at_a_time_in_the_order_of_publishing(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "b1", "a3")
    run(conn, verbs.publish("orders", "free"))
    a1, b1, free = lease(conn)
    assert (bodies([a1, b1, free]), a1.group_key) == (["a1", "b1", "free"], "a")
    assert lease(other) == []
    finish(conn, a1)
    (a2,) = lease(other)
    assert a2.body == "a2"
    assert lease(conn) == []
    finish(other, a2)
    assert bodies(lease(conn)) == ["a3"]


def test_a_head_that_comes_back_goes_before_the_rest_of_its_group(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    (head,) = lease(conn)
    assert lease(other) == []
    run(conn, verbs.release(head.lock_token, [head.id]))
    (head,) = lease(other, lease_for=timedelta(milliseconds=1))
    assert head.body == "a1"
    until_leases_expire(conn)
    scan_again(conn)
    (head,) = lease(conn)
    assert head.body == "a1"
    run(conn, verbs.release(head.lock_token, [head.id], delay=HOUR))
    scan_again(conn)
    assert lease(other) == []


@pytest.mark.parametrize(
    ("dies", "resolution"),
    [("failed", "dismissed"), ("failed", "requeued"), ("failed", "skipped"), ("lock_expired", "requeued")],
)
def test_a_dead_head_blocks_its_group_until_it_is_resolved(
    conn: Connection, other: Connection, queue: Queue, dies: str, resolution: str
) -> None:
    queue("orders", max_attempts=1)
    publish(conn, "a1", "a2")
    (head,) = lease(conn, lease_for=timedelta(milliseconds=1) if dies == "lock_expired" else HOUR)
    publish(other, "a3")
    if dies == "lock_expired":
        until_leases_expire(conn)
    else:
        finish(conn, head, dies)
    for session in (conn, other):
        scan_again(conn)
        assert lease(session) == []
    assert conn.execute("SELECT result FROM messages.message_archive").fetchall() == [(dies,)]
    if resolution == "dismissed":
        (dead,) = run(other, verbs.lease_dead("orders"))
        run(other, verbs.dismiss(dead.lock_token, [dead.id], "an order of a test"))
    elif resolution == "requeued":
        run(other, verbs.requeue_dead("orders"))
    else:
        run(other, verbs.alter_queue("orders", on_dead_head="skip"))
    assert drained(conn) == {"a": ["a1", "a2", "a3"] if resolution == "requeued" else ["a2", "a3"]}


def test_a_dead_head_is_skipped_where_the_queue_says_so_and_goes_first_when_it_is_requeued(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders", on_dead_head="skip")
    publish(conn, "a1", "a2", "a3")
    finish(conn, lease(conn)[0], "failed")
    (a2,) = lease(other)
    assert a2.body == "a2"
    run(conn, verbs.requeue_dead("orders"))
    assert lease(conn) == []
    finish(other, a2)
    assert drained(conn) == {"a": ["a1", "a3"]}


def test_publishers_of_a_group_wait_for_nobody_and_each_keeps_its_order(
    conn: Connection, other: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(idle, "a1", "b2")
    publish(other, "b1", "a2")
    publish(idle, "a3")
    (a2, b1) = sorted(lease(conn), key=lambda message: str(message.body))
    idle.commit()
    assert lease(other) == []
    finish(conn, a2)
    finish(conn, b1)
    assert bodies([a2, b1]) == ["a2", "b1"]
    assert drained(other) == {"a": ["a1", "a3"], "b": ["b2"]}


def test_a_batch_with_dedup_keys_keeps_the_order_of_its_bodies(conn: Connection, queue: Queue) -> None:
    queue()
    keys = ["key-9", "key-10", "key-2"]
    run(conn, verbs.publish_batch("orders", keys, dedup_keys=keys, group_keys=["seven"] * 3))
    assert drained(conn) == {"seven": keys}


def test_what_is_committed_after_the_last_of_its_group_was_finished_is_found(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    publish(idle, "a2")
    finish(conn, head)
    idle.commit()
    assert bodies(lease(conn)) == ["a2"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_a_transaction_leased_that_is_still_open_is_in_flight(
    conn: Connection, other: Connection, idle: Connection, connect: Connect, queue: Queue, ends: str
) -> None:
    queue("orders")
    late = connect(autocommit=False)
    publish(late, "a1")
    publish(conn, "a2")
    (a2,) = lease(idle)
    late.commit()
    scan_again(other)
    assert lease(other) == []  # a1 was published first, and nobody else can see that a2 is leased
    getattr(idle, ends)()
    if ends == "commit":
        scan_again(other)
        assert lease(other) == []
        finish(idle, a2)
        idle.commit()
    assert drained(other) == {"a": ["a1"] if ends == "commit" else ["a1", "a2"]}


@pytest.mark.parametrize("delay", [timedelta(0), HOUR])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_idle_consumer_that_looked_at_a_group_holds_up_nobody_and_strands_nothing(
    conn: Connection, other: Connection, idle: Connection, queue: Queue, ends: str, delay: timedelta
) -> None:
    queue("orders")
    publish(conn, "a1")
    (a1,) = lease(conn)
    publish(conn, "a2")
    assert lease(idle) == []  # it has found no room for a2, and its transaction stays open
    finish(other, a1)
    run(other, verbs.publish("orders", "a3", group_key="a", delay=delay))
    publish(other, "b1")
    a2, b1 = lease(other)
    assert bodies([a2, b1]) == ["a2", "b1"]
    finish(other, b1)
    getattr(idle, ends)()
    scan_again(conn)
    assert lease(conn) == []
    finish(conn, a2)
    assert bodies(lease(conn)) == ([] if delay else ["a3"])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_consumer_in_a_transaction_of_its_own_takes_one_after_the_other(
    conn: Connection, other: Connection, idle: Connection, queue: Queue, ends: str
) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "a3")
    assert bodies(run(idle, verbs.consume("orders"))) == ["a1"]
    assert lease(other) == []
    assert bodies(run(idle, verbs.consume("orders"))) == ["a2"]
    assert lease(other) == []
    getattr(idle, ends)()
    assert drained(conn) == {"a": ["a3"] if ends == "commit" else ["a1", "a2", "a3"]}


def test_plain_sql_that_deletes_a_head_blocks_nobody(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    (head,) = lease(conn)
    assert lease(other) == []
    conn.execute("DELETE FROM messages.message WHERE id = %s", [head.id])
    assert drained(other) == {"a": ["a2"]}


def test_a_scan_lets_in_a_group_behind_many_that_plain_sql_leases(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "b1", "b2")
    heads = [message.id for message in lease(conn)]
    conn.execute(
        "UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '1 hour' WHERE message = '\"a2\"'"
    )
    conn.execute("DELETE FROM messages.message WHERE id = ANY (%s)", [heads])
    scan_again(conn)
    assert bodies(lease(conn, max_messages=1)) == ["b2"]


def test_what_ran_out_of_attempts_under_plain_sql_is_not_let_in_again(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    publish(conn, "a1", "a2")
    (a1,) = lease(conn)
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE message = '\"a2\"'")
    scan_later(conn)
    finish(conn, a1)
    scan_again(conn)
    assert lease(conn) == []
    ended = conn.execute("SELECT result, attempts FROM messages.message_archive WHERE message = '\"a2\"'")
    assert ended.fetchall() == [("lock_expired", 1)]


def test_a_delayed_head_of_one_group_does_not_count_as_ready_for_another(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "a1", group_key="a", delay=HOUR))
    publish(conn, "b1")
    assert bodies(lease(conn, max_messages=1)) == ["b1"]


def patiently(conn: Connection, verb: Statement[T]) -> T:
    """Run a verb until no other transaction is in its way, as may happen at the stricter levels of isolation."""
    while True:
        with suppress(ConnectionFailed):
            return run(conn, verb)


@pytest.mark.long
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_publishers_and_consumers_at_once_keep_each_group_in_order_and_one_at_a_time(
    connect: Connect, queue: Queue, level: str
) -> None:
    """Four consumers that crash and roll back, three publishers that commit late or not at all, and no maintenance."""
    queue("orders", max_attempts=1000)
    groups = "abcdefghijklmnopqrstuvwxy"
    stop = threading.Event()
    seen: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    flying: defaultdict[str, int] = defaultdict(int)
    crowded: list[str] = []

    def produce(number: int) -> None:
        chance = random.Random(number)
        sessions = [connect(autocommit=False) for _ in range(2)]
        numbers: list[defaultdict[str, int]] = [defaultdict(int) for _ in sessions]
        for turn in range(15):
            place = turn % 2  # the transaction of the other session is still open
            keys = [chance.choice(groups) for _ in range(chance.randint(1, 10))]
            made, batch = numbers[place].copy(), []
            for key in keys:
                made[key] += 1
                batch.append([f"{number}.{place}", made[key]])
            run(sessions[place], verbs.publish_batch("orders", batch, group_keys=keys))
            if chance.random() < 0.1:
                sessions[place].rollback()
            else:
                numbers[place] = made
            sessions[1 - place].commit()
        sessions[place].commit()

    def handle(message: Message) -> None:
        group = str(message.group_key)
        flying[group] += 1
        if flying[group] > 1:
            crowded.append(group)
        publisher, place = message.body
        seen[group, publisher].append(place)
        flying[group] -= 1

    def consume(number: int) -> None:
        def begin() -> Connection:
            escaped = level.replace(" ", r"\ ")
            return connect(options=f"-c default_transaction_isolation={escaped}")

        session, chance = begin(), random.Random(number)
        while not stop.is_set():
            what = chance.random()
            if what < 0.02:
                patiently(session, verbs.lease("orders", max_messages=5, lease_for=timedelta(milliseconds=50)))
                session.close()  # and nobody finishes what it held
                session = begin()
            elif what < 0.06:
                take = verbs.lease if what < 0.04 else verbs.consume
                with suppress(ConnectionFailed), session.transaction(force_rollback=True):
                    run(session, take("orders", max_messages=5))
            else:
                leased = patiently(session, verbs.lease("orders", max_messages=chance.randint(1, 10)))
                for message in leased:
                    if chance.random() < 0.05:
                        patiently(session, verbs.release(message.lock_token, [message.id]))
                    else:
                        handle(message)
                        patiently(session, verbs.archive(message.lock_token, [message.id]))
                if not leased:
                    stop.wait(0.02)

    conn = connect()
    with ThreadPoolExecutor(7) as pool:
        try:
            consumers = [pool.submit(consume, number) for number in range(4)]
            list(pool.map(produce, range(3)))
            until(lambda: conn.execute("SELECT FROM messages.message").rowcount == 0, what="an empty queue")
        finally:
            stop.set()
        for consumer in consumers:
            consumer.result()
    assert crowded == []
    assert sum(map(len, seen.values())) > 150
    for places in seen.values():
        assert places == list(range(1, len(places) + 1))


@pytest.mark.long
def test_a_lease_beside_10000_groups_reads_no_more_than_it_takes(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders")
    conn.execute(
        "INSERT INTO messages.message (queue_name, message, group_key)"
        " SELECT 'orders', to_jsonb(n), (n % 10000)::text FROM generate_series(1, 30000) n"
    )
    lease(conn, max_messages=10)
    assert len(lease(idle, max_messages=10)) == 10
    (read,) = idle.execute(
        "SELECT seq_tup_read, idx_tup_fetch < 200 FROM pg_stat_xact_user_tables"
        " WHERE relid = 'messages.message_rows'::regclass"
    ).fetchall()
    assert read == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("policy", [{}, {"rate_limit": 1_000_000}])
def test_thousands_of_groups_that_have_to_wait_keep_nobody_from_what_is_behind_them(
    conn: Connection, queue: Queue, policy: dict[str, int]
) -> None:
    queue("orders", **policy)
    keys = [f"key {number}" for number in range(5000)]
    run(conn, verbs.publish_batch("orders", keys, group_keys=keys))
    conn.execute(
        "INSERT INTO messages.dead_message (id, archived_at, queue_name, result, group_key)"
        " SELECT -id, clock_timestamp(), queue_name, 'failed', group_key FROM messages.message"
    )
    run(conn, verbs.publish("orders", "free", group_key="free"))
    assert "free" in [body for _ in range(3) for body in bodies(lease(conn, max_messages=1))]


def test_a_purge_of_a_long_group_takes_as_long_as_the_group_is(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(20_000), group_keys=["a"] * 20_000))
    (head,) = lease(conn, max_messages=1)
    conn.execute("SET statement_timeout = '20s'")  # one by one it took more than a minute
    assert run(conn, verbs.purge_queue("orders")) == 19_999
    finish(other, head)
    publish(other, "a2")
    assert bodies(lease(conn)) == ["a2"]


@pytest.mark.parametrize("finish_by", ["archive", "consume"])
def test_a_waiter_looks_again_soon_while_an_open_transaction_holds_the_head(
    conn: Connection, other: Connection, idle: Connection, queue: Queue, finish_by: str
) -> None:
    """Nobody notifies at the commit: the next was published, and put behind, before it."""
    queue("orders")
    publish(conn, "a1")
    if finish_by == "archive":
        (head,) = lease(conn)
        run(idle, verbs.archive(head.lock_token, [head.id]))
    else:
        run(idle, verbs.consume("orders"))
    publish(conn, "a2")
    assert lease(other) == []
    (found,) = run(other, verbs.scan(["orders"]))
    assert found.next_in <= timedelta(seconds=1)
    idle.commit()
    until(lambda: run(other, verbs.scan(["orders"]))[0].ready, timeout=3, what="the scan that finds it")
    assert bodies(lease(other)) == ["a2"]
