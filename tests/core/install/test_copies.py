"""A queue goes on elsewhere: from a dump, as a logical replica, at an earlier time; each between real servers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, run, verbs
from tests.core.maintenance.test_health import check
from tests.waiting import LONGEST_STATEMENT, until
from tools import server_user
from tools.postgres import Cluster, fleeting_place

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def other(another_cluster: Callable[..., Cluster]) -> Cluster:
    """Another running cluster, with a queue in database `queue`."""
    cluster = another_cluster("other")
    with psycopg.connect(cluster.create_database("queue"), autocommit=True) as conn:
        migrate(conn)
        conn.execute("ALTER SYSTEM SET wal_level = logical")
        # From the directory of the log: a restore reads it.
        conn.execute("ALTER SYSTEM SET wal_keep_size = '1GB'")
    cluster.restart()
    return cluster


def program(cluster: Cluster, name: str, *arguments: str) -> bytes:
    command = [str(cluster.binaries.folder / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def busy(conn: Connection, **policy: int) -> list[int]:
    """A queue with what a copy may lose: priorities, marks, a depth, finished and dead messages."""
    run(conn, verbs.create_queue("orders", **policy))  # type: ignore[arg-type]
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3, 4], priority=5))
    leased = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(leased[0].lock_token, [leased[0].id]))
    run(conn, verbs.archive(leased[1].lock_token, [leased[1].id], result="failed"))  # type: ignore[arg-type]
    return ids


def goes_on(conn: Connection, ids: list[int]) -> None:
    """New ids are new, all that waits is leased in its order, and what ended can be seen."""
    assert run(conn, verbs.publish("orders", 5, priority=9)) > max(ids)
    leased = run(conn, verbs.lease("orders", max_messages=10))
    assert [message.body for message in leased] == [5, 3, 4]
    assert {id for (id,) in conn.execute("SELECT id FROM messages.archive_overview")} == set(ids[:2])
    end = run(conn, verbs.archive_log_end())["horizon"]
    (seen,) = conn.execute("SELECT sum(messages) FROM messages.split_archive_log(0, %s)", [end]).fetchone() or (0,)
    assert seen == 2
    run(conn, verbs.maintain())
    bad = [one for one in run(conn, verbs.health()) if one.severity == "critical"]
    assert bad == []


def test_a_dump_goes_on_in_another_cluster_after_one_more_installation(
    cluster: Cluster, other: Cluster, dsn: str, conn: Connection
) -> None:
    ids = busy(conn, max_leased=50)
    # The other server is young: what its archive has seen lies in its future.
    conn.execute("UPDATE messages.message_archive SET xid = xid + 1000000000")
    dump = program(cluster, "pg_dump", dsn)
    restored = other.create_database("from_a_dump")
    command = [str(other.binaries.folder / "psql"), "-q", "-v", "ON_ERROR_STOP=1", restored]
    subprocess.run(command, input=dump, check=True, capture_output=True)
    with psycopg.connect(restored, autocommit=True) as copy:
        found = check(copy, "copy")
        assert found.severity == "critical"
        assert "and did not take over here" in found.finding
        migrate(copy)
        assert check(copy, "copy").severity == "ok"
        goes_on(copy, ids)


def test_a_copy_without_the_archive_has_no_dead_message_that_blocks_its_group(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders", max_attempts=1))
    run(conn, verbs.publish_batch("orders", [1, 2], group_keys=["a", "a"]))
    (first,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(first.lock_token, [first.id], result="failed"))
    # As in a dump with --exclude-table-data='messages.message_archive*'.
    conn.execute("DELETE FROM messages.archive_rows")
    assert run(conn, verbs.lease("orders")) == []
    assert conn.execute("SELECT messages.adopt_copy() -> 'dead_lost'").fetchone() == (1,)
    assert run(conn, verbs.dead_ids()) == []
    assert [message.body for message in run(conn, verbs.lease("orders"))] == [2]
    assert conn.execute("SELECT messages.adopt_copy() -> 'dead_lost'").fetchone() == (0,)


def test_a_transaction_of_another_database_does_not_make_an_original_a_copy(cluster: Cluster, conn: Connection) -> None:
    with psycopg.connect(cluster.dsn()) as elsewhere:
        elsewhere.execute("SELECT pg_current_xact_id()")  # older than all that follows
        busy(conn)
        places = "SELECT id, xid FROM messages.message_archive ORDER BY id"
        before = conn.execute(places).fetchall()
        assert conn.execute("SELECT messages.adopt_copy() ->> 'archive_moved'").fetchone() == ("0",)
        assert conn.execute(places).fetchall() == before != []


@pytest.mark.parametrize("itself", [True, False])
def test_what_was_archived_since_a_transaction_began_is_of_this_server(
    conn: Connection, connect: Callable[..., Connection], itself: bool
) -> None:
    with conn.transaction():
        conn.execute("SELECT pg_current_xact_id()")
        busy(conn if itself else connect())
        assert conn.execute("SELECT messages.adopt_copy() ->> 'archive_moved'").fetchone() == ("0",)


@pytest.fixture
def original(other: Cluster) -> Iterator[Connection]:
    """A session to a queue of its own on the other cluster."""
    dsn = other.create_database("original")
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        yield conn
    other.drop_database("original")


def test_a_logical_replica_takes_over(
    cluster: Cluster, other: Cluster, original: Connection, template_database: str, empty_dsn: str
) -> None:
    """`template_database` brings the group roles."""
    conn, dsn = original, other.dsn("original")
    schema = program(other, "pg_dump", "--schema-only", dsn)
    command = [str(cluster.binaries.folder / "psql"), "-q", "-v", "ON_ERROR_STOP=1", empty_dsn]
    subprocess.run(command, input=schema, check=True, capture_output=True)
    tables = conn.execute(
        "SELECT string_agg(format('messages.%I', relname), ', ') FROM pg_class"
        " WHERE relnamespace = 'messages'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
        " AND relname NOT IN ('lane', 'queue', 'unused_sequence')"
    ).fetchone()
    columns = conn.execute(
        "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'messages.queue'::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('scan_due', 'rate_mark')"
    ).fetchone()
    published = f"{tables[0]}, messages.queue ({columns[0]})"
    conn.execute(f"CREATE PUBLICATION pgqueue FOR TABLE {published} WITH (publish_via_partition_root = true)".encode())
    assert check(conn, "copy").severity == "ok"
    with psycopg.connect(empty_dsn, autocommit=True) as copy:
        copy.execute(f"CREATE SUBSCRIPTION pgqueue CONNECTION '{dsn}' PUBLICATION pgqueue".encode())
        coming = "SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'"
        until(lambda: not copy.execute(coming).rowcount, what="the first copy of each table")
        ids = busy(conn)
        ended = "SELECT count(*) FROM messages.message_archive WHERE queue_name = 'orders'"
        waits = "SELECT count(*) FROM messages.message WHERE queue_name = 'orders' AND lock_expires_at IS NULL"
        until(lambda: [copy.execute(q.encode()).fetchone() for q in (ended, waits)] == [(2,), (2,)], what="the copy")
        copy.execute("DROP SUBSCRIPTION pgqueue")
        found = check(copy, "copy")
        assert found.severity == "critical"
        assert "which is taken" in found.finding
        assert found.fix == "SET statement_timeout = 0; SELECT messages.adopt_copy()"
        copy.execute(found.fix)
        migrate(copy)
        assert check(copy, "copy").severity == "ok"
        goes_on(copy, ids)


def test_a_hot_standby_returns_what_is_ready(other: Cluster) -> None:
    standby = Cluster(fleeting_place() / "standby", kind=other.kind, durable=False)
    with psycopg.connect(other.dsn("queue"), autocommit=True) as conn:
        run(conn, verbs.create_queue("bills"))
        run(conn, verbs.publish_batch("bills", [1, 2]))
        run(conn, verbs.lease("bills"))
    server_user.make_directory(standby.directory)
    server_user.give(standby.directory)
    other._run(
        "pg_basebackup", "-D", str(standby.data), "-d", other.dsn(), "-X", "stream", "-c", "fast", "--no-sync", "-R"
    )
    try:
        standby.start()
        with psycopg.connect(standby.dsn("queue"), autocommit=True) as conn:
            assert conn.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            (found,) = run(conn, verbs.ready_queues(["bills"]))
            assert found.ready == 1
            assert [one.ready for one in run(conn, verbs.scan(["bills"]))] == [1]
    finally:
        standby.destroy()


def test_a_restore_to_a_point_in_time_delivers_again_what_ended_later(other: Cluster) -> None:
    then = Cluster(fleeting_place() / "then", kind=other.kind, durable=False, statement_timeout=LONGEST_STATEMENT)
    with psycopg.connect(other.dsn("queue"), autocommit=True) as conn:
        run(conn, verbs.create_queue("orders"))
        server_user.make_directory(then.directory)
        server_user.give(then.directory)
        other._run("pg_basebackup", "-D", str(then.data), "-d", other.dsn(), "-X", "none", "-c", "fast", "--no-sync")
        first, second = (run(conn, verbs.publish("orders", number)) for number in (1, 2))
        (leased,) = run(conn, verbs.lease("orders"))
        conn.execute("SELECT pg_create_restore_point('before')")
        run(conn, verbs.archive(leased.lock_token, [leased.id]))
        later = run(conn, verbs.publish("orders", 3))
        conn.execute("SELECT pg_switch_wal()")
    with (then.data / "postgresql.auto.conf").open("a") as conf:
        conf.write(f"restore_command = 'cp {other.data}/pg_wal/%f %p'\n")
        conf.write("recovery_target_name = 'before'\nrecovery_target_action = 'promote'\n")
    (then.data / "recovery.signal").touch()
    server_user.give(then.data / "recovery.signal")
    try:
        then.start()
        with psycopg.connect(then.dsn("queue"), autocommit=True) as conn:
            in_recovery = "SELECT WHERE pg_is_in_recovery()"
            until(lambda: not conn.execute(in_recovery).rowcount, what="the promotion")
            assert check(conn, "copy").severity == "ok"
            # What was leased is leased until its time is over. What ended or came later has not happened.
            assert [message.id for message in run(conn, verbs.lease("orders", max_messages=5))] == [second]
            conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE id = %s", [first])
            run(conn, verbs.maintain())
            assert [message.id for message in run(conn, verbs.lease("orders", max_messages=5))] == [first]
            assert conn.execute("SELECT FROM messages.message WHERE id = %s", [later]).rowcount == 0
            assert run(conn, verbs.publish("orders", 4)) > second
            assert [one for one in run(conn, verbs.health()) if one.severity == "critical"] == []
    finally:
        then.destroy()
