"""More queues than a transaction can lock: what the server has no room for is warned of, refused, or done in parts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.cli.program import run_program
from airflow_provider_pgqueue.core import migrate, migrations, run, verbs
from airflow_provider_pgqueue.core.errors import TransactionTooLarge
from tests.waiting import until
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long

QUEUES = 1500
MOST = 1200  # locks of one transaction, next to the catalogue's


@pytest.fixture(scope="module")
def small(another_cluster: Callable[..., Cluster]) -> Cluster:
    """A server with room for about 5,000 locks, and a database `many` with 3,000 sequences of queues."""
    cluster = another_cluster("small")
    with psycopg.connect(cluster.create_database("many"), autocommit=True) as conn:
        migrate(conn)
        for first in range(0, QUEUES, 500):
            conn.execute(
                "SELECT messages.create_queue('queue_' || n) FROM generate_series(%s::int, %s) n",
                [first, first + 499],
            )
        conn.execute("ALTER SYSTEM SET max_connections = 20")
    cluster.restart()
    return cluster


@pytest.fixture
def conn(small: Cluster) -> Iterator[Connection]:
    small.drop_database("copy")
    with psycopg.connect(small.create_database("copy", template="many"), autocommit=True) as conn:
        yield conn


def locks(conn: Connection) -> int:
    ((held,),) = conn.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()").fetchall()
    return int(held)


def fill(small: Cluster, conn: Connection) -> None:
    """One message in each queue, in transactions that stay small."""
    conn.execute("INSERT INTO messages.message (queue_name, message) SELECT queue_name, '1' FROM messages.queue")


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_no_step_of_ours_locks_more_than_about_a_thousand(small: Cluster, conn: Connection, full: bool) -> None:
    if full:
        fill(small, conn)
    for step in (
        "SELECT messages.maintain()",
        "SELECT messages.health()",
        "SELECT messages.ready_queues()",
        "SELECT messages.adopt_copy()",
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(step.encode())
            assert locks(conn) < MOST, step
    with conn.transaction():
        migrate(conn)
        assert locks(conn) < MOST


def test_a_maintenance_run_goes_on_where_the_last_one_stopped(small: Cluster, conn: Connection) -> None:
    fill(small, conn)
    at = ""
    while at is not None:
        run(conn, verbs.maintain())
        ((next_queue,),) = conn.execute("SELECT next_queue FROM messages.maintenance_run").fetchall()
        assert next_queue is None or next_queue > at
        at = next_queue
    left_out = conn.execute("SELECT FROM messages.queue WHERE pg_sequence_last_value(scan_due) IS NULL").rowcount
    assert left_out == 0


def test_a_copy_goes_on_though_its_marks_are_those_of_the_original(small: Cluster, conn: Connection) -> None:
    fill(small, conn)
    conn.execute("SELECT messages.store_time(mark, clock_timestamp()) FROM messages.lane WHERE queue_name = 'queue_7'")
    conn.execute("SELECT messages.adopt_copy()")
    until(lambda: run(conn, verbs.lease("queue_7")))


def test_a_copy_without_marks_is_refused_with_the_number_to_set(small: Cluster, conn: Connection) -> None:
    conn.execute("DELETE FROM messages.lane; UPDATE messages.queue SET scan_due = NULL")
    with pytest.raises(psycopg.Error, match=r"adopt_copy\(\) needs about 1501 locks") as refused:
        conn.execute("SELECT messages.adopt_copy()")
    assert refused.value.sqlstate == "PQ018"
    assert "Set max_locks_per_transaction = 320, restart" in (refused.value.diag.message_hint or "")


def test_an_installation_that_has_to_give_much_away_is_refused(small: Cluster, conn: Connection) -> None:
    conn.execute("UPDATE pg_class SET relowner = 10 WHERE relname ~ '^mark_'")
    with pytest.raises(TransactionTooLarge, match="giving the schema to messages_owner needs about"):
        migrate(conn)


def test_doctor_names_the_number_with_which_a_dump_works(small: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def locks_of_a_dump() -> list[str]:
        run_program(["doctor", "--dsn", small.dsn("many")])
        found = re.findall(r"pg_dump and pg_upgrade lock the 30.*\n.*fix: (.*)", capsys.readouterr().out)
        return [str(fix) for fix in found]

    dump = [small.binaries.folder / "pg_dump", "-f", "/dev/null", small.dsn("many")]
    assert locks_of_a_dump() == ["set max_locks_per_transaction = 640 and restart the server"]
    with psycopg.connect(small.dsn("many"), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET max_locks_per_transaction = 640")
    small.restart()
    try:
        subprocess.run(dump, check=True, capture_output=True)
        assert locks_of_a_dump() == []
    finally:
        with psycopg.connect(small.dsn("many"), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM RESET max_locks_per_transaction")
        small.restart()


def test_many_queues_are_uninstalled_by_psql(small: Cluster, conn: Connection) -> None:
    psql = [small.binaries.folder / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", ROOT / "sql" / "uninstall.sql"]
    done = subprocess.run([*psql, small.dsn("copy")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


def test_many_queues_are_uninstalled_from_python(conn: Connection) -> None:
    migrations.uninstall(conn)
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)
