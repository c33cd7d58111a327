"""What needs the whole table gives way: nobody else queues up behind it for long."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import migrate, run, verbs
from airflow_provider_pgqueue.core.errors import InUse, TransactionTooLarge

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

pytestmark = pytest.mark.long


def lose_last_partition(conn: Connection) -> None:
    conn.execute(
        "DO $$ BEGIN EXECUTE (SELECT format('DROP TABLE %s', p.partition) FROM messages.archive_partitions() p"
        " ORDER BY p.first_at DESC LIMIT 1); END $$"
    )


def use_archive(holder: Connection) -> None:
    """Leave a transaction open that read and wrote messages and the archive."""
    holder.autocommit = False
    run(holder, verbs.publish("orders", 1))
    run(holder, verbs.consume("orders"))


def patient(connect: Connect) -> Connection:
    """A connection that waits three seconds for a lock and not forever."""
    return connect(options="-c lock_timeout=3s")


def test_maintenance_leaves_partitions_to_the_next_one_while_the_archive_is_in_use(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue()
    lose_last_partition(conn)
    holder = connect()
    use_archive(holder)
    [(done,)] = patient(connect).execute("SELECT messages.maintain()")
    assert done["partitions_made"] == 0
    holder.rollback()
    [(done,)] = conn.execute("SELECT messages.maintain()")
    assert done["partitions_made"] == 1


@pytest.mark.parametrize(
    "verb", [verbs.drop_queue("unrelated"), verbs.partition_archive("day")], ids=["drop", "partition"]
)
def test_what_needs_the_whole_table_gives_way_and_then_gives_up(
    conn: Connection, connect: Connect, queue: Queue, verb: Any
) -> None:
    queue()
    queue("unrelated")
    run(conn, verbs.publish_batch("orders", range(1000)))
    holder, changer, worker = connect(), connect(), connect(options="-c lock_timeout=2s")
    use_archive(holder)
    with ThreadPoolExecutor() as pool:
        change = pool.submit(run, changer, verb)
        worked = 0
        try:
            # Far slower than it could: eight seconds of all that a core can do show nothing more.
            while wait([change], timeout=0.1).not_done:
                run(worker, verbs.publish("orders", 1))
                worked += len(run(worker, verbs.consume("orders")))
        finally:
            if not change.done():
                holder.rollback()
        with pytest.raises(InUse, match="pg_prepared_xacts"):
            change.result()
    assert worked > 10
    holder.rollback()
    run(conn, verb)


def test_a_lease_of_a_millisecond_returns_no_message_twice(conn: Connection, queue: Queue) -> None:
    queue(max_attempts=1000)
    run(conn, verbs.publish_batch("orders", range(1000)))
    for _ in range(10):
        leased = run(conn, verbs.lease("orders", max_messages=3000, lease_for=timedelta(milliseconds=1)))
        ids = [message.id for message in leased]
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("winner", ['"partition": 0.0, "attempt": 1', '"partition": 0, "attempt": 1.0'])
def test_winners_with_a_decimal_point_are_a_bad_argument(conn: Connection, queue: Queue, winner: str) -> None:
    queue()
    with pytest.raises(psycopg.Error) as error:
        conn.execute("SELECT messages.publish_staged('job', 'run', %s, 'orders')", [f'[{{{winner}, "rows": 1}}]'])
    assert error.value.sqlstate == "PQ004"


def test_settings_of_a_session_do_not_place_what_the_queue_creates(conn: Connection, queue: Queue) -> None:
    queue()
    lose_last_partition(conn)
    conn.execute("SET default_tablespace = pg_global")  # nobody may create anything there
    run(conn, verbs.publish("orders", 1, priority=7))
    run(conn, verbs.alter_queue("orders", max_leased=10))
    conn.execute("SELECT messages.stage_publish('job', 'orders')")
    assert conn.execute("SELECT messages.make_archive_partitions()").fetchone() == (1,)
    conn.execute("SELECT messages.adopt_archive_default()")


def test_a_transaction_that_creates_more_queues_than_the_server_can_lock_is_told_so(
    connect: Connect, queue: Queue
) -> None:
    conn = connect(autocommit=False)
    run(conn, verbs.create_queue("first"))
    # Locks of any kind fill the same table, and these in less time.
    for more in (10_000, 1_000, 100, 10, 1):
        while True:
            try:
                with conn.transaction():
                    conn.execute(
                        "SELECT pg_advisory_xact_lock((random() * 1e15)::bigint) FROM generate_series(1, %s)", [more]
                    )
            except psycopg.errors.OutOfMemory:
                break
    with pytest.raises(TransactionTooLarge, match="Create a thousand at most in one transaction"):
        run(conn, verbs.create_queue("last"))
    conn.rollback()
    for number in range(2):
        run(conn, verbs.create_queue(f"queue_{number}"))


def test_a_maintenance_run_drops_no_more_sequences_than_a_transaction_can_lock(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO messages.unused_sequence (sequence, since)"
        " SELECT n::oid::regclass, clock_timestamp() - interval '2 hours'"
        " FROM generate_series(4000000000, 4000001499) n"
    )
    for left in (500, 0):
        run(conn, verbs.maintain())
        assert conn.execute("SELECT FROM messages.unused_sequence").rowcount == left


def test_whoever_ends_the_same_leases_at_once_waits_in_no_circle(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    sessions = [connect(options="-c deadlock_timeout=10ms") for _ in range(4)]

    def end(session: Connection, ids: list[int] | None) -> None:
        if ids is None:
            run(session, verbs.release_messages("orders", holder="gone"))
        else:
            run(session, verbs.release_messages("orders", ids))
            run(session, verbs.cancel("orders", ids[:50]))

    for _ in range(6):
        ids = run(conn, verbs.publish_batch("orders", list(range(300))))
        for _ in range(60):
            run(conn, verbs.lease("orders", max_messages=5, locked_by="gone"))
        given = [None, ids[::-1], None, ids]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(end, sessions, given))
        assert conn.execute("SELECT count(*) FROM messages.message WHERE lock_token IS NOT NULL").fetchone() == (0,)
        run(conn, verbs.purge_queue("orders"))


MAINTENANCE = "SELECT messages.maintain()"


def test_a_run_that_was_refused_and_is_asked_for_does_not_hold_up_the_dispatcher(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    (refused,) = run(conn, verbs.dispatch_messages("orders", "work"))
    conn.execute("SELECT messages.end_dispatch('work', %s, 'refused')", [refused.run_id])
    holder = connect(autocommit=False)
    holder.execute("SELECT messages.lock_dispatch('work', %s)", [refused.run_id])
    conn.execute("SET statement_timeout = '5s'")
    (opened,) = run(conn, verbs.dispatch_messages("orders", "work"))
    assert opened.run_id == f"{refused.run_id}__1"


def test_a_run_that_was_cleared_waits_for_seconds_for_the_one_who_has_its_messages(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    (opened,) = run(conn, verbs.dispatch_messages("orders", "work"))
    conn.execute("SELECT messages.end_dispatch('work', %s, 'refused')", [opened.run_id])
    run(connect(autocommit=False), verbs.lease("orders"))
    conn.execute("SET statement_timeout = '20s'")
    with pytest.raises(psycopg.Error, match="is in use") as refused:
        conn.execute("SELECT messages.dispatched_messages('work', %s)", [opened.run_id])
    assert refused.value.sqlstate == "PQ016"


def test_an_installation_waits_for_another_one_and_for_nobody_who_has_no_right_to_install(
    connect: Connect, conn: Connection
) -> None:
    stranger, other = connect(autocommit=False), connect(autocommit=False)
    stranger.execute("SELECT pg_advisory_xact_lock(hashtextextended('messages.migrate', 0))")
    conn.execute("SET statement_timeout = '50s'")
    migrate(conn)
    other.execute("LOCK TABLE messages.schema_migration IN SHARE ROW EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(migrate, conn)
        with pytest.raises(InUse, match=r"schema_migration is in use"):
            second.result()
    other.rollback()
    assert migrate(conn) == []


def test_sessions_that_install_for_the_first_time_at_once_all_succeed(empty_dsn: str) -> None:
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(empty_dsn, autocommit=True)) for _ in range(3)]
        assert sorted(pool.map(migrate, conns)) == [[], [], [1]]


def test_what_nobody_has_to_wait_for_leaves_out_what_another_transaction_does(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    conn.execute("SELECT messages.maintain()")
    holder = connect(autocommit=False)
    holder.execute(MAINTENANCE.encode())
    assert conn.execute(MAINTENANCE.encode()).fetchone() == ({"skipped": "another maintenance run is in progress"},)
    holder.rollback()
    holder.execute("SELECT messages.lock_export('message_archive_202601')")
    taken = "SELECT messages.lock_export('message_archive_2026' || part) FROM unnest(ARRAY['01', '02']) AS part"
    assert conn.execute(taken.encode()).fetchall() == [(False,), (True,)]


def test_nobody_without_a_grant_can_compute_the_key_of_a_lock(conn: Connection, connect: Connect, queue: Queue) -> None:
    """What a session can know of a lock are the names of the queue and of the group."""
    keys = []
    for name in ("orders", "letters"):
        queue(name)
        run(conn, verbs.publish(name, 1, group_key="ann"))
        with conn.transaction():
            run(conn, verbs.lease(name))
            keys += conn.execute("SELECT classid, objid FROM pg_locks WHERE locktype = 'advisory'").fetchall()
    ((orders, group), (letters, same_group)) = keys
    assert group == same_group
    assert orders != letters
    assert conn.execute("SELECT count(DISTINCT lock_key) >= 2 FROM messages.queue").fetchone() == (True,)
    conn.execute("CREATE ROLE stranger_to_locks LOGIN")
    try:
        for table in ("queue", "archive_policy"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connect(user="stranger_to_locks").execute(
                    sql.SQL("SELECT lock_key FROM messages.{}").format(sql.Identifier(table))
                )
    finally:
        conn.execute("DROP ROLE stranger_to_locks")
