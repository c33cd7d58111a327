"""Groups: strictly in order, one in flight."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from tests.waiting import until_leases_expire

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def publish(conn: Connection, *bodies: str) -> list[int]:
    """Publish texts such as `a1`, whose first letter is the group."""
    return run(conn, verbs.publish_batch("orders", bodies, group_keys=[body[0] for body in bodies]))


def lease(conn: Connection, **arguments: Any) -> list[Message]:
    return run(conn, verbs.lease("orders", **({"max_messages": 100} | arguments)))


def finish(conn: Connection, message: Message, result: str = "success") -> None:
    run(conn, verbs.archive(message.lock_token, [message.id], result=result))


def bodies(messages: list[Message]) -> list[Any]:
    return [message.body for message in messages]


def in_turn(conn: Connection) -> dict[str, list[Any]]:
    """Finish all that waits, and return the bodies of each group in the order in which they were leased."""
    seen: defaultdict[str, list[Any]] = defaultdict(list)
    while messages := lease(conn):
        for message in messages:
            seen[str(message.group_key)].append(message.body)
            finish(conn, message)
    return dict(seen)


def test_one_message_of_a_group_is_leased_at_a_time_in_the_order_of_publishing(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "b1", "a3")
    run(conn, verbs.publish("orders", "free"))
    first = lease(conn)
    assert sorted(bodies(first)) == ["a1", "b1", "free"]
    assert first[0].group_key == "a"
    assert lease(conn) == []
    finish(conn, first[0])
    second = lease(conn)
    assert bodies(second) == ["a2"]
    finish(conn, second[0])
    assert bodies(lease(conn)) == ["a3"]


def test_a_released_head_keeps_its_group_waiting(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    (head,) = lease(conn)
    run(conn, verbs.release(head.lock_token, [head.id], delay=timedelta(hours=1)))
    assert lease(conn) == []


def test_an_expired_head_comes_back_before_the_rest_of_its_group(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    lease(conn, lease_for=timedelta(milliseconds=1))
    until_leases_expire(conn)
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
    assert bodies(lease(conn)) == ["a1"]


def test_a_dead_head_blocks_its_group_until_it_is_dismissed(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "b1")
    dead = lease(conn)[0]
    finish(conn, dead, "rejected")
    publish(conn, "a3")
    assert lease(conn) == []
    (leased,) = run(conn, verbs.lease_dead("orders"))
    run(conn, verbs.dismiss(leased.lock_token, [leased.id], "an order of a test"))
    assert bodies(lease(conn)) == ["a2"]


def test_a_requeued_head_goes_before_the_rest_of_its_group(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    finish(conn, lease(conn)[0], "failed")
    (requeued,) = run(conn, verbs.requeue_dead("orders"))
    (again,) = lease(conn)
    assert (again.body, again.id) == ("a1", requeued.new_id)
    finish(conn, again)
    assert bodies(lease(conn)) == ["a2"]


def test_a_dead_head_is_skipped_where_the_queue_says_so_and_goes_to_the_end_when_requeued(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", on_dead_head="skip")
    publish(conn, "a1", "a2", "a3")
    finish(conn, lease(conn)[0], "failed")
    run(conn, verbs.requeue_dead("orders"))
    seen = []
    for _ in range(3):
        (message,) = lease(conn)
        seen.append(message.body)
        finish(conn, message)
    assert seen == ["a2", "a3", "a1"]


def test_changing_the_policy_to_skip_frees_the_blocked_groups(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    finish(conn, lease(conn)[0], "failed")
    run(conn, verbs.alter_queue("orders", on_dead_head="skip"))
    assert bodies(lease(conn)) == ["a2"]


def test_a_head_that_dies_of_an_expired_lease_blocks_too(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    publish(conn, "a1", "a2")
    lease(conn, lease_for=timedelta(milliseconds=1))
    until_leases_expire(conn)
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
    assert lease(conn) == []
    row = conn.execute("SELECT result FROM messages.message_archive").fetchone()
    assert row == ("lock_expired",)
    run(conn, verbs.requeue_dead("orders"))
    assert bodies(lease(conn)) == ["a1"]


def test_a_group_is_taken_over_by_a_publisher_that_commits_after_its_head_was_finished(
    connect: Connect, queue: Queue
) -> None:
    conn, publisher = connect(), connect(autocommit=False)
    queue("orders")
    publish(conn, "a1")
    (head,) = lease(conn)
    publish(publisher, "a2")  # waits behind a1, and holds the lock of the group
    finish(conn, head)  # cannot see a2, and does not wait for it
    publisher.commit()
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
    lease(conn)
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
    held = conn.execute("SELECT message FROM messages.message WHERE lock_expires_at IS NOT NULL").fetchall()
    assert [*bodies(lease(conn)), *[row[0] for row in held]] == ["a2"]


def test_plain_sql_that_deletes_a_head_blocks_nobody_after_the_next_upkeep(conn: Connection, queue: Queue) -> None:
    queue("orders")
    first, _ = publish(conn, "a1", "a2")
    conn.execute("DELETE FROM messages.message WHERE id = %s", [first])
    assert lease(conn) == []
    assert run(conn, verbs.upkeep())["groups_repaired"] == 1
    assert bodies(lease(conn)) == ["a2"]


def test_two_publishers_of_one_group_wait_for_each_other_and_keep_their_order(connect: Connect, queue: Queue) -> None:
    first, second, conn = connect(autocommit=False), connect(), connect()
    queue("orders")
    publish(first, "a1")
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(publish, second, "a2")
        publish(conn, "b1")  # of another group: does not wait
        first.commit()
        later.result(timeout=20)
    (head,) = [message for message in lease(conn) if message.group_key == "a"]
    assert head.body == "a1"


def test_a_batch_with_dedup_keys_keeps_the_order_of_its_bodies(conn: Connection, queue: Queue) -> None:
    queue()
    keys = ["key-9", "key-10", "key-2"]
    run(conn, verbs.publish_batch("orders", keys, dedup_keys=keys, group_keys=["seven"] * 3))
    seen = []
    while messages := lease(conn):
        seen += bodies(messages)
        finish(conn, messages[0])
    assert seen == keys


def test_batches_that_mix_groups_in_any_order_do_not_deadlock(connect: Connect, queue: Queue) -> None:
    queue("orders")
    groups = [chr(97 + number) for number in range(20)]

    def work(number: int) -> int:
        conn, chance = connect(), random.Random(number)
        return sum(len(publish(conn, *(chance.choice(groups) + str(n) for n in range(50)))) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 2000


def test_eight_consumers_see_each_group_in_order_and_one_at_a_time(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders", max_attempts=1000)
    for number in range(30):
        publish(conn, *(f"{group}{number}" for group in "abcdefgh"))
    seen: defaultdict[str, list[int]] = defaultdict(list)
    flying: defaultdict[str, int] = defaultdict(int)
    crowded: list[str] = []

    def consume(number: int) -> None:
        session, chance = connect(), random.Random(number)
        while session.execute("SELECT EXISTS (SELECT FROM messages.message)").fetchone() == (True,):
            for message in lease(session, max_messages=chance.randint(1, 5)):
                group, place = message.body[0], int(message.body[1:])
                flying[group] += 1
                if flying[group] > 1:
                    crowded.append(group)
                fails = chance.random() < 0.2
                if not fails:
                    seen[group].append(place)
                flying[group] -= 1
                if fails:
                    run(session, verbs.release(message.lock_token, [message.id]))
                else:
                    finish(session, message)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(consume, range(8)))
    assert dict(seen) == {group: list(range(30)) for group in "abcdefgh"}
    assert crowded == []


def test_publishers_of_a_group_that_has_messages_do_not_wait_for_each_other(connect: Connect, queue: Queue) -> None:
    first, second, conn = connect(autocommit=False), connect(), connect()
    queue("orders")
    publish(conn, "a1", "b1")
    second.execute("SET lock_timeout = '1s'")
    publish(first, "a2", "b2")
    publish(second, "b3", "a3")
    publish(first, "b4")
    first.commit()
    assert in_turn(conn) == {"a": ["a1", "a2", "a3"], "b": ["b1", "b2", "b3", "b4"]}


def sweep(conn: Connection) -> None:
    """Let the next lease sweep, as it does at least once a second."""
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")


def drained(conn: Connection) -> dict[str, list[Any]]:
    """Handle all messages of all groups, with a sweep before each lease, and return their bodies in order."""
    seen: defaultdict[str, list[Any]] = defaultdict(list)
    idle = 0
    while idle < 2:
        sweep(conn)
        messages = lease(conn)
        idle = 0 if messages else idle + 1
        for message in messages:
            seen[str(message.group_key)].append(message.body)
            finish(conn, message)
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (0,)
    for table in ("group_head", "group_follower", "group_without_head"):
        query = f"SELECT count(*) FROM messages.{table}"  # noqa: S608
        assert conn.execute(query.encode()).fetchone() == (0,), table
    return seen


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("others", [0, 100])
def test_transactions_that_start_the_same_groups_in_opposite_order_wait_for_nobody(
    connect: Connect, queue: Queue, ends: str, others: int
) -> None:
    patience = "-c lock_timeout=3s -c deadlock_timeout=100ms"
    first, second, conn = connect(autocommit=False, options=patience), connect(options=patience), connect()
    queue("orders")
    more = [f"{number}" for number in range(others)]
    bodies, groups = ["b1", *more], ["b", *(f"g{number}" for number in range(others))]
    publish(first, "a1")
    with second.transaction():
        run(second, verbs.publish_batch("orders", bodies, group_keys=groups))
        publish(first, "b3")  # the head of b cannot be seen
        publish(second, "a2")  # nor that of a
        publish(second, "a4", "b4")
    publish(first, "a5")
    getattr(first, ends)()
    kept = ["a1", "a5"] if ends == "commit" else []
    seen = drained(conn)
    assert [body for body in seen["a"] if body in kept] == kept
    assert [body for body in seen["a"] if body not in kept] == ["a2", "a4"]
    assert [body for body in seen["b"] if body != "b3"] == ["b1", "b4"]
    assert ("b3" in seen["b"]) == (ends == "commit")
    assert sum(map(len, seen.values())) == 4 + others + (3 if kept else 0)


def test_what_waits_without_a_head_goes_before_what_comes_later(connect: Connect, queue: Queue) -> None:
    first, second, conn = connect(autocommit=False), connect(), connect()
    queue("orders")
    publish(first, "a0")
    publish(second, "a1")  # behind a0, which comes to nothing
    first.rollback()
    publish(conn, "a2")
    assert lease(conn) == []
    assert drained(conn) == {"a": ["a1", "a2"]}


def test_a_group_that_is_being_started_while_a_sweep_looks_is_looked_at_again(connect: Connect, queue: Queue) -> None:
    first, second, conn = connect(autocommit=False), connect(), connect()
    queue("orders")
    publish(first, "a0")
    publish(second, "a1")
    sweep(conn)
    assert lease(conn) == []  # whether a0 comes is not known yet
    first.rollback()
    assert drained(conn) == {"a": ["a1"]}


def test_transactions_that_finish_a_group_and_publish_to_that_of_the_other_wait_for_nobody(
    connect: Connect, queue: Queue
) -> None:
    patience = "-c lock_timeout=3s -c deadlock_timeout=100ms"
    first, second = (connect(autocommit=False, options=patience) for _ in range(2))
    conn = connect()
    queue("orders")
    publish(conn, "a1", "b1")
    ends = {message.group_key: message for message in lease(conn)}
    finish(first, ends["a"])  # each was the last
    finish(second, ends["b"])
    publish(first, "b2")
    publish(second, "a2")
    sweep(conn)
    assert lease(conn) == []
    second.commit()
    sweep(conn)
    assert lease(conn) == []  # the end of a cannot be seen yet
    first.commit()
    assert drained(conn) == {"a": ["a2"], "b": ["b2"]}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_transactions_that_free_dead_heads_and_requeue_those_of_the_other_wait_for_nobody(
    conn: Connection, connect: Connect, queue: Queue, ends: str
) -> None:
    patience = "-c lock_timeout=3s -c deadlock_timeout=100ms"
    sessions = {name: connect(autocommit=False, options=patience) for name in ("orders", "others")}
    for name in sessions:
        queue(name)
        run(conn, verbs.publish_batch(name, ["dead", "next"], group_keys=["a", "a"]))
        (message,) = run(conn, verbs.lease(name))
        run(conn, verbs.archive(message.lock_token, [message.id], result="failed"))
    for name, session in sessions.items():
        run(session, verbs.alter_queue(name, on_dead_head="skip"))
    for name, session in zip(reversed(sessions), sessions.values(), strict=True):
        run(session, verbs.requeue_dead(name))
    for session in sessions.values():
        getattr(session, ends)()
    for name in sessions:
        run(conn, verbs.alter_queue(name, on_dead_head="skip"))
        bodies = []
        while leased := run(conn, verbs.lease(name)):
            bodies += [message.body for message in leased]
            run(conn, verbs.archive(leased[0].lock_token, [leased[0].id]))
        assert bodies == (["next", "dead"] if ends == "commit" else ["next"])


def test_a_batch_writes_each_message_once_whether_it_waits_or_not(connect: Connect, queue: Queue) -> None:
    conn = connect(autocommit=False)
    queue("orders")
    publish(conn, "a1", "b1")
    run(conn, verbs.publish_batch("orders", ["a2", "b2", "c1", "c2", "-1"], group_keys=["a", "b", "c", "c", None]))
    row = conn.execute(
        "SELECT n_tup_ins, n_tup_upd FROM pg_stat_xact_user_tables WHERE relid = 'messages.message'::regclass"
    ).fetchone()
    assert row == (7, 0)


def test_publishers_and_consumers_at_once_keep_each_group_in_order_and_one_at_a_time(
    connect: Connect, queue: Queue
) -> None:
    conn = connect()
    queue("orders", max_attempts=1000)
    published = threading.Event()
    seen: list[tuple[str, int, int]] = []
    flying: defaultdict[str, int] = defaultdict(int)
    crowded: list[str] = []

    def produce(number: int) -> None:
        session, chance = connect(autocommit=False), random.Random(number)
        last: defaultdict[str, int] = defaultdict(int)
        for _ in range(40):
            keys = [chance.choice("abcdef") for _ in range(chance.randint(1, 8))]
            bodies = []
            for key in keys:
                last[key] += 1
                bodies.append([number, last[key]])
            if chance.random() < 0.3:
                for key, body in zip(keys, bodies, strict=True):
                    run(session, verbs.publish("orders", body, group_key=key))
            else:
                run(session, verbs.publish_batch("orders", bodies, group_keys=keys))
            if chance.random() < 0.1:
                session.rollback()
                for key in keys:
                    last[key] -= 1
            else:
                session.commit()

    def consume(_: int) -> None:
        session = connect()
        while True:
            done = published.is_set()
            messages = lease(session, max_messages=5)
            for message in messages:
                group = str(message.group_key)
                flying[group] += 1
                if flying[group] > 1:
                    crowded.append(group)
                seen.append((group, *message.body))
                flying[group] -= 1
                finish(session, message)
            if not messages and done:
                if session.execute("SELECT EXISTS (SELECT FROM messages.message)").fetchone() == (False,):
                    return
                session.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")

    with ThreadPoolExecutor(6) as pool:
        consumers = [pool.submit(consume, number) for number in range(3)]
        list(pool.map(produce, range(3)))
        published.set()
        for consumer in consumers:
            consumer.result(timeout=60)
    assert crowded == []
    for group in "abcdef":
        for producer in range(3):
            places = [place for key, number, place in seen if (key, number) == (group, producer)]
            assert places == list(range(1, len(places) + 1)), (group, producer)
    assert len(seen) > 300
    run(conn, verbs.upkeep())
    assert conn.execute("SELECT count(*) FROM messages.group_head").fetchone() == (0,)
    assert conn.execute("SELECT count(*) FROM messages.group_follower").fetchone() == (0,)


def test_a_batch_beside_10000_groups_reads_no_more_than_its_own(connect: Connect, queue: Queue) -> None:
    conn, publisher = connect(), connect()
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(10_000), group_keys=[str(n) for n in range(10_000)]))
    for keys in (["1", "2", "2"], ["new", "newer"], ["newest"]):  # of groups that exist, and that do not
        with publisher.transaction():
            run(publisher, verbs.publish_batch("orders", keys, group_keys=keys))
            row = publisher.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
                " WHERE relid = 'messages.group_head'::regclass"
            ).fetchone()
        assert row is not None
        assert row[0] <= 10


def test_a_lease_beside_10000_groups_reads_no_more_than_it_takes(connect: Connect, queue: Queue) -> None:
    conn, consumer = connect(), connect()
    queue("orders")
    conn.execute(
        "INSERT INTO messages.message (queue_name, message, group_key)"
        " SELECT 'orders', to_jsonb(n), (n % 10000)::text FROM generate_series(1, 30000) n"
    )
    with consumer.transaction():
        assert len(lease(consumer, max_messages=10)) == 10
        row = consumer.execute(
            "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relid = 'messages.message'::regclass"
        ).fetchone()
    assert row is not None
    assert row[0] == 0
    assert row[1] < 100


def test_a_purge_of_a_long_group_takes_as_long_as_the_group_is(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(20_000), group_keys=["a"] * 20_000))
    publish(conn, "b1")
    (head, _) = sorted(lease(conn, max_messages=2), key=lambda message: message.id)
    conn.execute("SET statement_timeout = '20s'")  # one by one it took more than a minute
    assert run(conn, verbs.purge_queue("orders")) == 19_999
    finish(conn, head)
    publish(conn, "a2")
    assert bodies(lease(conn)) == ["a2"]
