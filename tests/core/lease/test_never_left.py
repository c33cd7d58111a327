"""Who waits is never left: from the commit that makes room to the next lease, with scans switched off.

The marks are not corrected and no maintenance runs, so nothing but leases and timers finds what is ready.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from airflow_provider_pgqueue.core.errors import PgQueueError
from tests.core.lease.test_marks import bodies, scan_later
from tests.waiting import heard, until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

# On a quiet machine all come within 0.1 s; the tests of a busy one must not fail.
SOON = 5.0
GROUPS = 6


@pytest.fixture
def idle(connect: Connect) -> Connection:
    """A session that leaves its transactions open."""
    return connect(autocommit=False)


@pytest.fixture
def strict(connect: Connect) -> Connection:
    """A session whose transactions see what was committed when they began."""
    conn = connect(autocommit=False)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    return conn


def publish(conn: Connection, *bodies: str) -> list[int]:
    """Publish texts such as `a1`, whose first letter is the group; those that begin with a digit have none."""
    keys = [body[0] if body[0].isalpha() else None for body in bodies]
    return run(conn, verbs.publish_batch("orders", bodies, group_keys=keys))


def lease(conn: Connection, number: int = 10) -> list[Message]:
    return run(conn, verbs.lease("orders", max_messages=number))


def finish(conn: Connection, *messages: Message) -> None:
    for message in messages:
        assert run(conn, verbs.archive(message.lock_token, [message.id])) == [message.id]


def next_of(conn: Connection) -> list[Any]:
    """Return the bodies of the next lease that finds something."""
    found: list[Message] = []
    until(lambda: found.extend(lease(conn)) or found, timeout=SOON, what="the next message", pause=0.005)
    return bodies(found)


def archive_by_plain_sql(conn: Connection, message: Message) -> None:
    conn.execute(
        "WITH gone AS (DELETE FROM messages.message WHERE id = %s RETURNING *)"
        " INSERT INTO messages.message_archive (id, created_at, queue_name, group_key, result, message)"
        " SELECT id, created_at, queue_name, group_key, 'success', message FROM gone",
        [message.id],
    )


def others_move_the_mark(conn: Connection) -> None:
    """Publish and finish other messages for a while, so that leases move the mark past what is not committed."""
    for number in range(10):
        publish(conn, f"{number}")
        finish(conn, *lease(conn, 1))
        time.sleep(0.02)


@pytest.mark.parametrize("verb", ["archive", "release", "cancel", "consume"])
def test_what_a_transaction_lets_in_is_leased_once_it_commits(
    conn: Connection, idle: Connection, queue: Queue, verb: str
) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    if verb == "consume":
        scan_later(conn)
        assert bodies(run(idle, verbs.consume("orders"))) == ["a1"]
    else:
        (a1,) = lease(conn)
        scan_later(conn)
        if verb == "archive":
            finish(idle, a1)
        elif verb == "release":
            run(idle, verbs.release(a1.lock_token, [a1.id]))
        else:
            run(idle, verbs.cancel("orders", [a1.id]))
    others_move_the_mark(conn)
    idle.commit()
    assert next_of(conn) == (["a1"] if verb == "release" else ["a2"])


def test_a_lease_that_ended_in_an_open_transaction_comes_back(conn: Connection, idle: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "1")
    run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=1)))
    scan_later(conn)
    time.sleep(0.05)
    idle.execute("SELECT messages.end_due('orders')")
    others_move_the_mark(conn)
    idle.commit()
    assert next_of(conn) == ["1"]


@pytest.mark.parametrize("held", ["released", "locked"])
def test_a_delay_that_ends_while_a_transaction_has_the_message_comes_back(
    conn: Connection, idle: Connection, queue: Queue, held: str
) -> None:
    queue("orders")
    publish(conn, "1")
    (message,) = lease(conn)
    scan_later(conn)
    session = idle if held == "released" else conn
    run(session, verbs.release(message.lock_token, [message.id], delay=timedelta(milliseconds=10)))
    idle.execute("SELECT FROM messages.message_rows WHERE id = %s FOR UPDATE", [message.id])
    others_move_the_mark(conn)
    assert lease(conn) == []
    idle.commit()
    assert next_of(conn) == ["1"]


def test_a_message_is_found_that_is_committed_after_its_group_ended(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (a1,) = lease(conn)
    scan_later(conn)
    publish(idle, "a2")
    finish(conn, a1)
    assert lease(conn) == []
    idle.commit()
    assert next_of(conn) == ["a2"]


def test_a_message_is_found_that_was_published_while_its_group_ends(
    conn: Connection, idle: Connection, queue: Queue
) -> None:
    """Neither transaction sees the other: the one that ends finds nobody, the other finds no room."""
    queue("orders")
    publish(conn, "a1")
    (a1,) = lease(conn)
    scan_later(conn)
    finish(idle, a1)
    publish(conn, "a2")
    assert lease(conn) == []
    idle.commit()
    assert next_of(conn) == ["a2"]


def test_an_end_that_sees_an_old_snapshot_leaves_nobody(conn: Connection, strict: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1")
    (a1,) = lease(conn)
    scan_later(conn)
    strict.execute("SELECT 1")
    publish(conn, "a2")
    assert lease(conn) == []
    finish(strict, a1)
    strict.commit()
    assert next_of(conn) == ["a2"]


@pytest.mark.parametrize("held", ["locked", "cancelled"])
def test_a_next_one_that_another_transaction_has_keeps_its_turn(
    conn: Connection, idle: Connection, queue: Queue, held: str
) -> None:
    queue("orders")
    _, a2, _ = publish(conn, "a1", "a2", "a3")
    (a1,) = lease(conn)
    scan_later(conn)
    if held == "locked":
        idle.execute("SELECT FROM messages.message_rows WHERE id = %s FOR UPDATE", [a2])
    else:
        run(idle, verbs.cancel("orders", [a2]))
    finish(conn, a1)
    assert lease(conn) == []
    time.sleep(0.1)
    assert lease(conn) == []
    idle.commit()
    assert next_of(conn) == (["a2"] if held == "locked" else ["a3"])


@pytest.mark.parametrize("verb", ["lease", "consume"])
def test_an_open_transaction_holds_up_no_group_but_its_own(
    conn: Connection, idle: Connection, queue: Queue, verb: str
) -> None:
    queue("orders")
    publish(conn, "a1", "b1", "c1")
    scan_later(conn)
    take = verbs.lease if verb == "lease" else verbs.consume
    (first,) = run(idle, take("orders", max_messages=1))
    assert sorted(bodies(lease(conn))) == sorted({"a1", "b1", "c1"} - {first.body})


def test_a_lease_that_is_rolled_back_gives_its_group_back(conn: Connection, idle: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    scan_later(conn)
    assert bodies(lease(idle)) == ["a1"]
    others_move_the_mark(conn)
    idle.rollback()
    assert next_of(conn) == ["a1"]


@pytest.mark.long
def test_sixty_sessions_that_are_killed_and_hold_rows_leave_nobody(connect: Connect, queue: Queue) -> None:
    """Sixty consumers of six groups: killed, next to locked rows, and to archives whose transactions stay open."""
    conn, stop, guard = connect(), threading.Event(), threading.Lock()
    queue("orders", lease_for=timedelta(seconds=2), max_attempts=1000, notify="off")
    waits = [f"{'abcdef'[number % GROUPS]}{number}" for number in range(600)]
    publish(conn, *waits)
    in_flight: defaultdict[str, dict[int, float]] = defaultdict(dict)
    together: list[tuple[str, int]] = []
    pids: dict[int, int] = {}

    def consume(place: int) -> None:
        session, chance = connect(), random.Random(place)
        pids[place] = session.info.backend_pid
        while not stop.is_set():
            try:
                leased = lease(session, 1)
                for message in leased:
                    with guard:
                        mine = in_flight[str(message.group_key)]
                        now = time.time()
                        together.extend(
                            (str(message.group_key), id_)
                            for id_, end in mine.items()
                            if end > now and id_ != message.id
                        )
                        mine[message.id] = message.lock_expires_at.timestamp() if message.lock_expires_at else now
                    if chance.random() < 0.03:
                        with session.transaction():
                            in_flight[str(message.group_key)].pop(message.id, None)
                            run(session, verbs.archive(message.lock_token, [message.id]))
                            time.sleep(0.3)
                    else:
                        in_flight[str(message.group_key)].pop(message.id, None)
                        run(session, verbs.archive(message.lock_token, [message.id]))
                if not leased:
                    time.sleep(0.02)
            except (PgQueueError, psycopg.Error):
                if session.closed or session.broken:
                    session = connect()
                    pids[place] = session.info.backend_pid

    def disturb() -> None:
        """Keep scans switched off, kill sessions, and lock single rows for a moment."""
        session, locks, chance = connect(), connect(autocommit=False), random.Random(0)
        while not stop.wait(0.1):
            scan_later(session)
            session.execute("SELECT pg_terminate_backend(%s)", [chance.choice(list(pids.values()))])
            with suppress(psycopg.Error):
                locks.execute("SELECT FROM messages.message_rows ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED")
                stop.wait(0.2)
                locks.rollback()

    with ThreadPoolExecutor(61) as pool:
        jobs = [pool.submit(consume, place) for place in range(60)]
        try:
            until(lambda: len(pids) == 60, what="sixty sessions")
            jobs.append(pool.submit(disturb))
            left = "SELECT FROM messages.message"
            until(lambda: conn.execute(left).rowcount == 0, timeout=90, what="an empty queue", pause=0.2)
        finally:
            stop.set()
        for job in jobs:
            job.result()
    assert together == []
    done = conn.execute("SELECT count(*), count(DISTINCT id) FROM messages.message_archive").fetchone()
    assert done == (600, 600)
    in_order = conn.execute(
        "SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY group_key ORDER BY archived_at) AS early"
        " FROM messages.message_archive) a WHERE early"
    ).fetchone()
    assert in_order == (0,)


@pytest.mark.parametrize("verb", ["dismiss", "plain SQL"])
def test_what_ends_in_an_old_snapshot_without_a_place_leaves_nobody(
    conn: Connection, strict: Connection, queue: Queue, verb: str
) -> None:
    queue("orders", max_attempts=1)
    publish(conn, "a1")
    (a1,) = lease(conn)
    if verb == "dismiss":
        run(conn, verbs.archive(a1.lock_token, [a1.id], result="failed"))
        (dead,) = run(conn, verbs.lease_dead("orders"))
    scan_later(conn)
    strict.execute("SELECT 1 FROM messages.message")
    publish(conn, "a2")
    assert lease(conn) == []
    if verb == "dismiss":
        run(strict, verbs.dismiss(dead.lock_token, [dead.id], "an order of a test"))
    else:
        archive_by_plain_sql(strict, a1)
    strict.commit()
    assert next_of(conn) == ["a2"]


def test_a_lease_in_an_old_snapshot_forgets_no_group(
    conn: Connection, idle: Connection, strict: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1")
    (a1,) = lease(conn)
    scan_later(conn)
    finish(idle, a1)
    publish(conn, "a2")
    strict.execute("SELECT 1 FROM messages.message")
    idle.commit()
    assert lease(strict) == []
    strict.commit()
    assert next_of(conn) == ["a2"]


def test_a_dead_message_that_blocks_nobody_lets_the_next_in(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1, on_dead_head="skip")
    publish(conn, "a1", "a2")
    assert len(run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=1)))) == 1
    scan_later(conn)
    assert next_of(conn) == ["a2"]


def test_a_group_of_several_places_uses_each_that_a_delay_gives_up_and_waits_for_none(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", max_leased_per_group=2)
    run(conn, verbs.publish("orders", "a0", group_key="a", delay=timedelta(milliseconds=300)))
    publish(conn, "a1", "a2", "a3")
    a1, a2 = lease(conn)
    scan_later(conn)
    run(conn, verbs.release(a1.lock_token, [a1.id], delay=timedelta(hours=1)))
    assert next_of(conn) == ["a3"]
    finish(conn, a2)
    assert next_of(conn) == ["a0"]


def test_the_first_of_a_group_keeps_its_turn_while_it_is_delayed(conn: Connection, queue: Queue) -> None:
    queue("orders")
    scan_later(conn)
    run(conn, verbs.publish("orders", "a1", group_key="a", delay=timedelta(hours=1)))
    publish(conn, "a2")
    assert lease(conn) == []


def test_an_arrival_with_a_delay_is_let_in_at_its_end_where_others_may_pass(conn: Connection, queue: Queue) -> None:
    queue("orders", max_leased_per_group=2)
    scan_later(conn)
    run(conn, verbs.publish("orders", "a1", group_key="a", delay=timedelta(milliseconds=300)))
    assert next_of(conn) == ["a1"]


INSERTED = """
    INSERT INTO messages.message (queue_name, message, group_key, lock_expires_at)
    VALUES ('orders', '"last"', 'a', clock_timestamp() + interval '10 ms')
"""
LOCKED = """
    UPDATE messages.message SET message = '"last"', lock_expires_at = clock_timestamp() + interval '10 ms'
     WHERE message = '"a3"'
"""


@pytest.mark.parametrize(("limit", "published", "by"), [(1, ["a1"], INSERTED), (2, ["a1", "a2", "a3"], LOCKED)])
def test_what_plain_sql_leased_waits_in_its_group_once_its_lease_has_ended(
    conn: Connection, queue: Queue, limit: int, published: list[str], by: str
) -> None:
    queue("orders", max_leased_per_group=limit)
    publish(conn, *published)
    a1, *_ = lease(conn)
    scan_later(conn)
    conn.execute(by.encode())

    def came_back() -> bool:
        assert lease(conn) == [], "the group has no place"
        locked = "SELECT FROM messages.message WHERE message = '\"last\"' AND lock_expires_at IS NOT NULL"
        return conn.execute(locked).rowcount == 0

    until(came_back, timeout=SOON, what="the end of the lock")
    finish(conn, a1)
    assert next_of(conn) == ["last"]


def test_a_message_that_plain_sql_moves_to_another_group_leaves_its_place_to_the_next(
    conn: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    run(conn, verbs.scan(["orders"]))
    scan_later(conn)
    conn.execute("UPDATE messages.message SET group_key = 'b' WHERE message = to_jsonb('a1'::text)")
    found: list[Message] = []
    until(lambda: found.extend(lease(conn)) or len(found) == 2, timeout=SOON, what="both messages")
    assert sorted(bodies(found)) == ["a1", "a2"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_the_next_of_a_group_follows_what_plain_sql_archives(
    conn: Connection, idle: Connection, queue: Queue, isolation: str
) -> None:
    queue("orders")
    publish(conn, "a1", "a2")
    (a1,) = lease(conn)
    scan_later(conn)
    idle.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
    archive_by_plain_sql(idle, a1)
    idle.commit()
    assert next_of(conn) == ["a2"]


def test_whoever_waits_hears_of_the_next_of_a_group_unless_it_is_taken_at_once(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "a1", "a2", "b1", "b2")
    listens = connect()
    listens.execute("LISTEN new_message")
    a1, b1 = sorted(lease(conn), key=lambda message: str(message.body))
    heard(listens)
    finish(conn, a1)
    assert len(heard(listens)) == 1
    exchange = "SELECT (leased).id, (leased).lock_token FROM messages.archive_and_lease(%s, %s, NULL, 'orders', %s)"
    ((a2, token),) = conn.execute(exchange, [b1.lock_token, [b1.id], 1]).fetchall()
    assert len(heard(listens)) == 1, "b2 is left for others"
    conn.execute("SELECT messages.archive(%s, %s)", [token, [a2]])
    ((_, token),) = conn.execute("SELECT id, lock_token FROM messages.lease('orders')").fetchall()
    publish(conn, "b3")
    heard(listens)
    ((b2,),) = conn.execute("SELECT id FROM messages.message WHERE lock_token = %s", [token]).fetchall()
    assert len(conn.execute(exchange, [token, [b2], 1]).fetchall()) == 1
    assert heard(listens) == []


def test_a_message_that_expired_in_its_group_does_not_hide_what_became_ready(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "1")
    assert bodies(lease(conn)) == ["1"]
    scan_later(conn)
    # A timer lets a1 into its group, one says that it has expired, one that the lease of "1" has ended. All are due.
    publish(conn, "a1")
    conn.execute("UPDATE messages.message SET expires_at = clock_timestamp() WHERE group_key = 'a'")
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE group_key IS NULL")
    assert bodies(lease(conn, 1)) == ["1"]
