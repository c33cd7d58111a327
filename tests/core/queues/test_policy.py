"""Queues as policy: limits, pause, purge, drop, back-off."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Duplicate,
    HandlerBroken,
    InvalidArgument,
    Message,
    QueueNotFound,
    QueuePaused,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import InUse, QueueNotEmpty
from tests.waiting import until_leases_expire, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def value(conn: Connection, query: str, *parameters: Any) -> Any:
    row = conn.execute(query.encode(), parameters).fetchone()
    return row[0]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"max_attempts": 0}, "max_attempts is 0. Give a whole number from 1 to 1000"),
        ({"lease_for": timedelta(0)}, "lease_for is 00:00:00"),
        ({"notify": "loud"}, "notify is 'loud'. Give always, gated or off"),
        ({"on_dead_head": "panic"}, "on_dead_head is 'panic'. Give block or skip"),
        ({"max_leased": -1}, "max_leased is -1"),
        ({"retention": timedelta(-1)}, "retention is -1 days"),
        ({"backoff_first": timedelta(days=2)}, "backoff_first is 2 days"),
        ({"dedup_window": timedelta(0)}, "dedup_window is 00:00:00"),
        ({"rate_limit": -1}, "rate_limit is -1"),
        ({"rate_limit": 1_000_001}, "rate_limit is 1000001"),
        ({"rate_period": timedelta(0)}, "rate_period is 0"),
        ({"rate_period": timedelta(days=32)}, "rate_period is 32 days"),
        ({"rate_burst": 0}, "rate_burst is 0"),
        ({"max_leased_per_group": 0}, "max_leased_per_group is 0"),
        ({"fair_by": "colour"}, "fair_by is 'colour'. Give group or topic"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_its_name_and_the_fix(
    shared: Connection, policy: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        run(shared, verbs.create_queue("others", **policy))
    with pytest.raises(InvalidArgument, match=says):
        run(shared, verbs.alter_queue("orders", **policy))


def test_alter_changes_what_is_given_and_nothing_else(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.create_queue("orders", max_attempts=7, retention=timedelta(days=3), max_leased=5))
    run(conn, verbs.alter_queue("orders", notify="gated"))
    run(conn, verbs.alter_queue("orders", retention=timedelta(0), max_leased=0))
    row = conn.execute(
        "SELECT max_attempts, notify, retention, max_leased FROM messages.queue WHERE queue_name = 'orders'"
    )
    assert row.fetchone() == (7, "gated", None, None)


def test_a_paused_queue_takes_messages_and_leases_none_until_it_is_resumed(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.pause_queue(queue("orders")))
    run(conn, verbs.publish("orders", 1))
    with pytest.raises(QueuePaused, match=r"resume_queue\('orders'\)"):
        run(conn, verbs.lease("orders"))
    run(conn, verbs.resume_queue("orders"))
    assert len(run(conn, verbs.lease("orders"))) == 1


def test_a_queue_with_messages_is_dropped_only_by_force(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3], group_keys=["a", "a", None]))
    run(conn, verbs.publish("orders", 4, priority=7, dedup_key="once", expires_in=timedelta(hours=1)))
    with pytest.raises(QueueNotEmpty, match="force => true"):
        run(conn, verbs.drop_queue("orders"))
    assert run(conn, verbs.drop_queue("orders", force=True)) == 4
    with pytest.raises(QueueNotFound):
        run(conn, verbs.drop_queue("orders"))
    for table in ("message", "timer", "dedup"):
        assert value(conn, f"SELECT count(*) FROM messages.{table}") == 0, table  # noqa: S608
    assert value(conn, "SELECT count(*) FROM messages.lane WHERE queue_name = 'orders'") == 0
    conn.execute("UPDATE messages.unused_sequence SET since = since - interval '61 minutes'")
    conn.execute("SELECT messages.drop_unused_sequences()")
    sequences = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'messages' AND sequencename ~ '(_[0-9]+)$'"
    assert value(conn, sequences) == 2  # those of the queue default
    assert run(conn, verbs.create_queue("orders"))


def test_a_drop_waits_for_publishers_so_that_no_message_is_left_without_a_queue(connect: Connect, queue: Queue) -> None:
    conn, publisher = connect(), connect(autocommit=False)
    run(publisher, verbs.publish(queue("orders"), 1))
    with ThreadPoolExecutor(1) as pool:
        drop = pool.submit(run, conn, verbs.drop_queue("orders"))
        until_waiting(connect())
        publisher.commit()
        with pytest.raises(QueueNotEmpty):
            drop.result(timeout=20)


@pytest.mark.parametrize(
    "call",
    [
        "messages.publish('orders', '1')",
        "messages.publish('orders', '1', dedup_key => 'k')",
        "messages.publish('orders', '1', priority => 9)",
        "messages.publish('orders', '1', group_key => 'g')",
        "messages.publish_batch('orders', '[1, 2]')",
        "messages.publish_batch('orders', '[1, 2]', dedup_keys => '{k,l}')",
        "messages.bind_topic('orders', 'eu.*')",
    ],
)
def test_whoever_waited_for_a_drop_is_told_and_leaves_nothing(connect: Connect, queue: Queue, call: str) -> None:
    conn, publisher, dropper = connect(), connect(), connect(autocommit=False)
    run(dropper, verbs.drop_queue(queue("orders")))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(publisher.execute, f"SELECT {call}".encode())
        until_waiting(conn)
        dropper.commit()
        with pytest.raises(psycopg.Error, match="queue 'orders' does not exist") as error:
            waits.result(timeout=20)
    assert error.value.sqlstate == "PQ001"
    for table in (b"message", b"timer", b"dedup", b"topic_binding"):
        assert conn.execute(b"TABLE messages." + table).fetchall() == []


def test_the_hint_for_a_queue_that_does_not_exist_can_be_followed(shared: Connection) -> None:
    def hint(name: str) -> str | None:
        with pytest.raises(psycopg.Error) as error:
            shared.execute("SELECT messages.pause_queue(%s)", [name])
        return error.value.diag.message_hint

    assert hint("bills") == "Create it: SELECT messages.create_queue('bills')"
    for name in ("Bills", "", "b-1", "b" * 49):
        assert str(hint(name)).startswith("No queue can have this name: use a lower-case letter")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_drop_that_would_not_see_what_publishers_commit_meanwhile_is_refused(
    conn: Connection, queue: Queue, level: str
) -> None:
    queue("orders")
    conn.execute(f"SET default_transaction_isolation = '{level}'".encode())
    with pytest.raises(InvalidArgument, match=f"is {level}. Nothing was changed. .* READ COMMITTED"):
        run(conn, verbs.drop_queue("orders"))
    conn.execute("SET default_transaction_isolation = 'read uncommitted'")
    assert run(conn, verbs.drop_queue("orders")) == 0


def test_a_purge_deletes_what_nobody_holds_and_frees_its_dedup_keys(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3], dedup_keys=["a", "b", "c"]))
    run(conn, verbs.publish("orders", 4, delay=timedelta(hours=1)))
    (held,) = run(conn, verbs.lease("orders"))
    assert run(conn, verbs.purge_queue("orders")) == 3
    assert run(conn, verbs.archive(held.lock_token, [held.id])) == [held.id]
    again = run(conn, verbs.publish_batch("orders", [1, 2, 3], dedup_keys=["a", "b", "c"]))
    assert [isinstance(id_, Duplicate) for id_ in again] == [True, False, False]


def test_no_more_are_leased_at_once_than_the_queue_allows_however_many_ask(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("orders", max_leased=7), range(100)))
    sessions = [connect() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda session: run(session, verbs.lease("orders", max_messages=3)), sessions))
    assert sum(map(len, taken)) == 7
    assert run(conn, verbs.lease("orders")) == []
    some = next(lease for lease in taken if len(lease) == 3)
    run(conn, verbs.archive(some[0].lock_token, [some[0].id]))
    run(conn, verbs.release(some[0].lock_token, [some[1].id]))
    assert len(run(conn, verbs.lease("orders", max_messages=10))) == 2


def test_a_rate_that_is_set_while_maintenance_makes_a_mark_says_what_is_in_use(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    run(conn, verbs.publish(queue("orders"), 1, priority=9))
    maintenance = connect(autocommit=False)
    run(maintenance, verbs.maintain())
    with pytest.raises(InUse, match="queue 'orders' is in use"):
        run(conn, verbs.alter_queue("orders", rate_limit=5))
    maintenance.commit()
    run(conn, verbs.alter_queue("orders", rate_limit=5))


def test_an_expired_lease_no_longer_counts(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_leased=1), [1, 2]))
    run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=1)))
    until_leases_expire(conn)
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
    assert len(run(conn, verbs.lease("orders"))) == 1


def test_a_lease_under_a_limit_reads_no_more_than_it_takes(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("orders", max_leased=20), range(10000)))
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('message_rows', 'timer')"
    )
    for expected in (20, 0):
        with conn.transaction():
            assert len(run(conn, verbs.lease("orders", max_messages=100))) == expected
            assert value(conn, read) < 200


def test_a_limit_is_set_without_waiting_for_who_leases_and_counts_them_from_their_commit(
    connect: Connect, queue: Queue
) -> None:
    conn, holder = connect(options="-c lock_timeout=3s"), connect(autocommit=False)
    run(conn, verbs.publish_batch(queue("orders"), range(20)))
    assert len(run(holder, verbs.lease("orders", max_messages=3))) == 3
    run(conn, verbs.alter_queue("orders", max_leased=4))
    assert len(run(conn, verbs.lease("orders"))) == 1
    holder.commit()
    assert run(conn, verbs.lease("orders")) == []


def test_a_lease_that_stays_uncommitted_holds_up_others_for_a_second_and_then_they_are_told(
    connect: Connect, queue: Queue
) -> None:
    conn, holder = connect(), connect(autocommit=False)
    run(conn, verbs.publish_batch(queue("orders", max_leased=7), range(20)))
    assert len(run(holder, verbs.lease("orders", max_messages=3))) == 3
    conn.execute("SET statement_timeout = '20 s'")
    with pytest.raises(InUse, match=r"queue 'orders' is in use\. Nothing was changed"):
        run(conn, verbs.lease("orders"))
    run(conn, verbs.publish("orders", 1))
    assert len(run(conn, verbs.consume("orders"))) == 1
    holder.rollback()
    assert len(run(conn, verbs.lease("orders", max_messages=9))) == 7


def test_a_lease_that_waited_for_a_change_of_the_policy_keeps_to_the_new_one(connect: Connect, queue: Queue) -> None:
    conn, consumer, admin = connect(), connect(), connect(autocommit=False)
    run(conn, verbs.publish_batch(queue("orders", max_leased=10), range(20)))
    with ThreadPoolExecutor(1) as pool:
        run(admin, verbs.alter_queue("orders", max_leased=2))
        waits = pool.submit(run, consumer, verbs.lease("orders", max_messages=10))
        until_waiting(conn)
        admin.commit()
        assert len(waits.result(timeout=20)) == 2
        run(admin, verbs.alter_queue("orders", max_leased=5))
        run(admin, verbs.pause_queue("orders"))
        waits = pool.submit(run, consumer, verbs.lease("orders", max_messages=10))
        until_waiting(conn)
        admin.commit()
        with pytest.raises(QueuePaused):
            waits.result(timeout=20)


def test_transactions_that_lease_from_two_limited_queues_in_different_order_end(connect: Connect, queue: Queue) -> None:
    conn, barrier = connect(), Barrier(2)
    names = [queue("orders", max_leased=5), queue("others", max_leased=5)]
    for name in names:
        run(conn, verbs.publish_batch(name, range(9)))

    def work(order: list[str]) -> bool:
        session = connect(autocommit=False, options="-c statement_timeout=20s")
        run(session, verbs.lease(order[0]))
        barrier.wait(20)
        try:
            run(session, verbs.lease(order[1]))
            session.commit()
        except InUse:
            session.rollback()
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert not all(pool.map(work, [names, names[::-1]]))


PLAIN_LEASE = """
    UPDATE messages.message m SET lock_expires_at = clock_timestamp() + %s::interval, locked_by = 'packer 1'
     WHERE id IN (SELECT id FROM messages.message WHERE lock_expires_at IS NULL OR lock_expires_at < clock_timestamp()
                   ORDER BY visible_at LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING id
"""


@pytest.mark.parametrize("limit_is_set", ["before", "after"])
def test_leases_of_plain_sql_count(conn: Connection, queue: Queue, limit_is_set: str) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(9)))
    if limit_is_set == "before":
        run(conn, verbs.alter_queue("orders", max_leased=4))
    taken = conn.execute(PLAIN_LEASE, ["5 minutes", 3]).fetchall()
    if limit_is_set == "after":
        run(conn, verbs.alter_queue("orders", max_leased=4))
    assert len(run(conn, verbs.lease("orders", max_messages=9))) == 1
    conn.execute("DELETE FROM messages.message WHERE id = ANY (%s)", [[row[0] for row in taken]])
    assert len(run(conn, verbs.lease("orders", max_messages=9))) == 3


def test_a_lease_that_plain_sql_took_over_counts_once(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_leased=2), range(9)))
    run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=1)))
    until_leases_expire(conn)
    conn.execute(PLAIN_LEASE, ["5 minutes", 1])
    assert len(run(conn, verbs.lease("orders", max_messages=9))) == 1


def test_the_back_off_of_a_queue_doubles_to_its_cap_with_jitter(conn: Connection, queue: Queue) -> None:
    policy = {"max_attempts": 100, "backoff_first": timedelta(seconds=8), "backoff_max": timedelta(seconds=20)}
    run(conn, verbs.create_queue("orders", **policy))
    run(conn, verbs.publish("orders", 1))
    pauses = []
    for _ in range(4):
        (message,) = run(conn, verbs.lease("orders"))
        run(conn, verbs.release(message.lock_token, [message.id], back_off=True))
        pauses.append(
            value(conn, "SELECT extract(epoch FROM visible_at - clock_timestamp())::float FROM messages.message")
        )
        conn.execute("UPDATE messages.message SET visible_at = clock_timestamp()")
    for pause, longest in zip(pauses, [8, 16, 20, 20], strict=True):
        assert longest / 2 - 1 < pause <= longest
    assert len(set(pauses)) == 4


def _pass(conn: Connection, time: str) -> None:
    """Let this time pass for the messages that wait for their next attempt."""
    conn.execute("UPDATE messages.message_rows SET visible_at = visible_at - %s::interval", [time])
    conn.execute("UPDATE messages.timer SET at = at - %s::interval", [time])
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")


def _down(message: Message) -> None:
    raise ConnectionError("the service is down")


def test_the_defaults_give_a_message_at_least_an_hour(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    waited = 0.0
    while messages := run(conn, verbs.lease("orders")):
        run(conn, verbs.release(messages[0].lock_token, [messages[0].id], back_off=True))
        left = conn.execute("SELECT extract(epoch FROM visible_at - clock_timestamp())::float FROM messages.message")
        waited += sum(pause for (pause,) in left)
        conn.execute("UPDATE messages.message SET visible_at = clock_timestamp()")
    assert value(conn, "SELECT result FROM messages.message_archive") == "failed"
    assert waited >= 3600


@pytest.mark.long
def test_an_outage_of_which_each_second_starts_a_consumer_makes_no_message_dead(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(300)))
    for _ in range(40):
        with suppress(HandlerBroken):
            Consumer(queue_name="orders", handle=_down, batch_size=100).drain(conn)
        _pass(conn, "1 second")
    assert value(conn, "SELECT count(*) FROM messages.message_archive") == 0
    assert value(conn, "SELECT max(attempts) FROM messages.message") > 5, "a default of five attempts killed them"
    _pass(conn, "1 hour")
    assert Consumer(queue_name="orders", handle=lambda message: None).drain(conn) == {"success": 300}
