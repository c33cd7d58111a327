"""Bands: a queue with many priorities costs a lease no more than the priorities that have a backlog."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import run, verbs
from tests.waiting import until, until_leases_expire, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

SWEEP_NOW = "SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority"
NO_SWEEP = "SELECT messages.store_moment(sweep_due, clock_timestamp() + '0.9 s') FROM messages.queue_priority"
SEQUENCES_READ = """SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                     WHERE l.pid = pg_backend_pid() AND c.relkind = 'S'"""
LEVELS = """SELECT priority, band FROM messages.queue_priority
             WHERE queue_name = 'orders' AND NOT follows ORDER BY priority DESC"""
ALL = range(-100, 101)


def one(conn: Connection, statement: str) -> Any:
    row = conn.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def make_band(conn: Connection, priorities: Iterable[int]) -> None:
    """Let the queue see these priorities, and empty it again."""
    for priority in priorities:
        run(conn, verbs.publish("orders", priority, priority=priority))
    while conn.execute("SELECT FROM messages.consume('orders', 1000)").fetchall():
        pass
    conn.execute(SWEEP_NOW)
    run(conn, verbs.lease("orders"))


def make_backlog(conn: Connection, priority: int) -> None:
    """Publish more than a band takes, and let a sweep see it."""
    run(conn, verbs.publish_batch("orders", [0] * 200, priority=priority))
    conn.execute(SWEEP_NOW)
    run(conn, verbs.lease("orders", max_messages=1, topic="none.has.it"))


def leased(conn: Connection, verb: str = "lease", number: int = 100) -> list[Any]:
    function = sql.Identifier("messages", verb)
    return [row[0] for row in conn.execute(sql.SQL("SELECT message FROM {}('orders', %s)").format(function), [number])]


@pytest.fixture
def band(conn: Connection, queue: Queue) -> Connection:
    """A session beside a queue whose 11 priorities share their marks."""
    queue("orders")
    make_band(conn, range(-5, 6))
    assert conn.execute(LEVELS).fetchall() == [(5, list(range(5, -6, -1)))]
    return conn


def test_an_empty_lease_reads_the_marks_of_the_band_only(conn: Connection, queue: Queue) -> None:
    queue("orders")
    make_band(conn, ALL)
    with conn.transaction():
        run(conn, verbs.lease("orders"))
        assert one(conn, SEQUENCES_READ) <= 4
    run(conn, verbs.publish("orders", "low", priority=-100))
    with conn.transaction():
        assert leased(conn) == ["low"]
        assert one(conn, SEQUENCES_READ) <= 4


def test_few_priorities_stay_alone(conn: Connection, queue: Queue) -> None:
    queue("orders")
    make_band(conn, range(4))
    assert [row[1] for row in conn.execute(LEVELS)] == [None] * 4


@pytest.mark.parametrize("verb", ["lease", "consume"])
@pytest.mark.parametrize("number", [1, 4, 100])
def test_a_band_gives_the_highest_priority_first_and_of_it_the_oldest(band: Connection, verb: str, number: int) -> None:
    for n, priority in enumerate([-5, 3, 0, 5, 3, -5, 4]):
        run(band, verbs.publish("orders", [priority, n], priority=priority))
    got: list[Any] = []
    calls = 0
    while some := leased(band, verb, number):
        got += some
        calls += 1
    assert calls == -(-7 // number)  # each looks through the whole band
    assert got == [[5, 3], [4, 6], [3, 1], [3, 4], [0, 2], [-5, 0], [-5, 5]]


@pytest.mark.parametrize("verb", ["lease", "consume"])
def test_a_priority_with_a_backlog_stands_between_the_parts_of_its_band(band: Connection, verb: str) -> None:
    make_backlog(band, 2)
    assert band.execute(LEVELS).fetchall() == [(5, [5, 4, 3]), (2, None), (1, [1, 0, -1, -2, -3, -4, -5])]
    run(band, verbs.publish("orders", "low", priority=-1))
    run(band, verbs.publish("orders", "high", priority=4))
    assert leased(band, verb, 1000) == ["high", *[0] * 200, "low"]


def test_a_priority_that_is_empty_again_returns_to_its_band(band: Connection) -> None:
    make_backlog(band, 2)
    make_backlog(band, -3)
    assert len(band.execute(LEVELS).fetchall()) == 5
    assert len(leased(band, "consume", 1000)) == 400
    band.execute(SWEEP_NOW)
    assert leased(band) == []
    assert len(band.execute(LEVELS).fetchall()) == 5  # not at once, or it would come and go
    band.execute("UPDATE messages.queue_priority SET alone_since = alone_since - interval '1 min'")
    band.execute(SWEEP_NOW)
    assert leased(band) == []
    assert len(band.execute(LEVELS).fetchall()) == 1
    run(band, verbs.publish("orders", "again", priority=2))
    assert leased(band) == ["again"]


def test_a_priority_with_leased_messages_does_not_join(conn: Connection, queue: Queue) -> None:
    queue("orders")
    for priority in range(6):
        run(conn, verbs.publish("orders", priority, priority=priority))
    run(conn, verbs.lease("orders", max_messages=3))
    assert leased(conn, "consume") == [2, 1, 0]
    conn.execute(SWEEP_NOW)
    run(conn, verbs.lease("orders"))
    assert conn.execute(LEVELS).fetchall() == [(5, None), (4, None), (3, None), (2, [2, 1, 0])]


def test_whoever_commits_late_is_found_at_once_or_by_the_next_sweep(connect: Connect, band: Connection) -> None:
    for age, at_once in ("1 s", True), ("6 s", False):
        publisher = connect(autocommit=False)
        publisher.execute("SELECT messages.publish('orders', '1', -2)")
        # As if it had begun then: its message lies below what everybody else has looked at since.
        publisher.execute("UPDATE messages.message SET visible_at = clock_timestamp() - %s::interval", [age])
        band.execute(SWEEP_NOW)
        assert leased(band) == []
        publisher.commit()
        band.execute(NO_SWEEP)
        assert leased(band) == ([1] if at_once else [])
        band.execute(SWEEP_NOW)
        assert leased(band) == ([] if at_once else [1])


def test_an_expired_lease_in_a_band_is_found_after_it_ended(connect: Connect, band: Connection) -> None:
    other = connect()
    run(band, verbs.publish("orders", "mine", priority=-2))
    assert len(run(band, verbs.lease("orders", lease_for=timedelta(seconds=4)))) == 1
    for _ in range(20):
        assert leased(other) == []
    until_leases_expire(other)
    assert until(lambda: leased(other)) == ["mine"]


def test_a_message_of_a_band_is_leased_again_after_its_release(band: Connection) -> None:
    run(band, verbs.publish("orders", "mine", priority=-2))
    (message,) = run(band, verbs.lease("orders"))
    band.execute(
        "SELECT messages.store_moment(shared_low_water, clock_timestamp())"
        "  FROM messages.queue WHERE queue_name = 'orders'"
    )
    run(band, verbs.release(message.lock_token, [message.id]))
    assert leased(band) == ["mine"]


def test_a_delayed_message_of_a_band_is_leased_when_it_is_due(band: Connection) -> None:
    run(band, verbs.publish("orders", "later", priority=-2, delay=timedelta(seconds=0.3)))
    band.execute(SWEEP_NOW)
    assert leased(band) == []
    assert until(lambda: leased(band)) == ["later"]


def test_the_shared_mark_follows_what_is_finished(band: Connection) -> None:
    run(band, verbs.publish("orders", "old", priority=-2))
    band.execute("UPDATE messages.message SET visible_at = clock_timestamp() - interval '1 min'")
    band.execute(SWEEP_NOW)
    assert leased(band, "consume") == ["old"]
    band.execute(SWEEP_NOW)
    assert leased(band) == []
    behind = one(
        band,
        "SELECT clock_timestamp() - messages.stored_moment(shared_low_water)"
        "  FROM messages.queue WHERE queue_name = 'orders'",
    )
    assert timedelta(seconds=5) <= behind < timedelta(seconds=30)


def test_what_is_released_while_a_sweep_walks_over_it_is_found_at_once(connect: Connect, band: Connection) -> None:
    slow, other = connect(), connect()
    for priority in (-5, 5):
        run(band, verbs.publish("orders", priority, priority=priority))
    low, high = sorted(run(band, verbs.lease("orders", max_messages=2)), key=lambda message: message.priority)
    band.execute("UPDATE messages.message SET visible_at = now() - interval '1 min' WHERE id = %s", [low.id])
    band.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE id = %s", [high.id])
    band.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END'"
    )
    band.execute(
        f"CREATE TRIGGER wait BEFORE UPDATE ON messages.message FOR EACH ROW WHEN (new.id = {high.id})"
        " EXECUTE FUNCTION wait()"
    )
    slow.execute("SELECT pg_advisory_lock(1)")
    band.execute(SWEEP_NOW)
    with ThreadPoolExecutor(1) as pool:
        swept = pool.submit(run, other, verbs.lease("orders"))
        until_waiting(band)
        run(band, verbs.release(low.lock_token, [low.id]))
        slow.execute("SELECT pg_advisory_unlock(1)")
        assert [message.id for message in swept.result()] == [high.id]
    band.execute(NO_SWEEP)
    assert leased(band) == [-5]


def test_the_shared_mark_follows_a_clock_that_went_back(band: Connection) -> None:
    run(band, verbs.publish("orders", "mine", priority=-2))
    band.execute(
        "SELECT messages.store_moment(mark, clock_timestamp() + '1 day')"
        "  FROM messages.queue, unnest(ARRAY[shared_low_water, shared_sweep_due]) mark WHERE queue_name = 'orders'"
    )
    assert leased(band) == ["mine"]


def test_nobody_waits_for_whoever_arranges_the_bands(connect: Connect, band: Connection) -> None:
    run(band, verbs.publish_batch("orders", [0] * 200, priority=2))
    busy = connect(autocommit=False)
    busy.execute(SWEEP_NOW)
    busy.execute("SELECT FROM messages.lease('orders', 1)")  # gives 2 its own marks, and stays open
    assert len(busy.execute(LEVELS).fetchall()) == 3
    band.execute("SET lock_timeout = '1 s'")
    band.execute(SWEEP_NOW)
    assert leased(band, number=1) == [0]  # its sweep would give 2 its own marks as well
    band.execute(SWEEP_NOW)
    assert len(leased(band, number=1000)) == 198
    assert run(band, verbs.publish("orders", "new", priority=7)) is not None
    assert leased(band) == ["new"]
    busy.rollback()
    assert leased(band) == [0]
    assert len(band.execute(LEVELS).fetchall()) in (2, 4)


def test_a_transaction_with_an_old_snapshot_leaves_the_bands_alone(connect: Connect, band: Connection) -> None:
    old = connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("SELECT FROM messages.queue")
    make_backlog(band, 2)
    run(band, verbs.publish_batch("orders", [0] * 200, priority=3))
    band.execute(SWEEP_NOW)
    old.execute("SELECT FROM messages.lease('orders', 1)")
    old.commit()


def test_a_dropped_queue_leaves_no_sequence_of_its_band(band: Connection) -> None:
    run(band, verbs.drop_queue("orders", force=True))
    band.execute("UPDATE messages.unused_sequence SET since = since - interval '2 hours'")
    band.execute("SELECT messages.upkeep()")
    kept = "SELECT count(*) FROM pg_class WHERE relkind = 'S' AND relname ~ '^(low_water|sweep_due)_'"
    assert one(band, kept) == 2 * one(band, "SELECT count(*) FROM messages.queue")
