"""health(): each check is provoked for real, its cure is executed, and the finding is gone."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import pq

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Finding
from airflow_provider_pgqueue.core.migrations import migrate
from tools import STATE
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
AT_ONCE = timedelta(0)
CHECKS = [
    "upkeep_lag",
    "cron_jobs",
    "cron_history",
    "schedules",
    "held_snapshot",
    "prepared_transaction",
    "replication",
    "dead_tuples",
    "index_bloat",
    "notify_queue",
    "archive_partitions",
    "history",
    "wraparound",
    "settings",
    "dead_messages",
    "waiting_messages",
]


def check(conn: Connection, check_name: str, **limits: timedelta) -> Finding:
    """What health() says about one thing."""
    (found,) = [one for one in run(conn, statements.health(**limits)) if one.check_name == check_name]
    return found


def internal(conn: Connection, call: str) -> tuple[Any, ...]:
    """Severity, finding and cure of one check with other limits than those of health()."""
    (row,) = conn.execute(f"SELECT severity, finding, cure FROM messages.health_{call}".encode()).fetchall()
    return row


def cure(conn: Connection, sql: str | None) -> None:
    """Run a cure as psql would: one statement after the other."""
    assert sql is not None
    for statement in sql.split("; "):
        conn.execute(statement.encode())


def counted(conn: Connection) -> None:
    """Bring the statistics of this session to where the next snapshot of them sees them."""
    conn.execute("SELECT pg_stat_force_next_flush()")
    conn.execute("SELECT 1")


def pid_of(conn: Connection) -> int:
    return conn.info.backend_pid


def gone(conn: Connection, pid: int) -> None:
    """Wait until the server has ended a session."""
    deadline = time.monotonic() + 20
    while conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount:
        assert time.monotonic() < deadline


# The whole -------------------------------------------------------------------------------------------------------------


def test_each_check_has_one_row_and_a_cure_unless_it_is_ok(conn: Connection) -> None:
    found = run(conn, statements.health())
    assert [one.check_name for one in found] == CHECKS
    assert [one for one in found if one.finding.startswith("not checked")] == []
    assert {one.severity for one in found} <= {"ok", "warning", "critical"}
    assert [one for one in found if (one.cure is None) != (one.severity == "ok")] == []


def test_health_only_reads_and_runs_in_a_read_only_transaction(conn: Connection) -> None:
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        assert len(run(conn, statements.health())) == len(CHECKS)
        assert conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)


def test_health_reads_a_bounded_number_of_messages_whatever_waits(
    conn: Connection, queue: Callable[..., str]
) -> None:
    conn.execute("SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, 20000) n))", [queue()])
    conn.execute("SELECT messages.consume('orders', 1000)")
    conn.execute("SELECT messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, 9) n), priority => 7)")
    with conn.transaction():
        run(conn, statements.health())
        row = conn.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables"
            " WHERE relname ~ '^message(_archive.*)?$'"
        ).fetchone()
    assert row is not None
    assert row[0] < 100


def test_a_check_that_cannot_run_is_a_row_and_the_others_are_there(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    holder = connect(autocommit=False, application_name="rewriter")
    holder.execute("LOCK TABLE messages.dead_message IN ACCESS EXCLUSIVE MODE")
    found = {one.check_name: one for one in run(conn, statements.health())}
    assert list(found) == CHECKS
    locked = found["dead_messages"]
    assert locked.severity == "warning"
    assert "not checked: canceling statement due to lock timeout" in locked.finding
    assert locked.cure is not None
    assert (pid_of(holder), "rewriter") in [row[:2] for row in conn.execute(locked.cure.encode()).fetchall()]


@pytest.mark.parametrize("arguments", ["NULL", "'-1 second'", "waiting_for => NULL", "waiting_for => '-1 day'"])
def test_a_limit_that_is_no_duration_is_refused(conn: Connection, arguments: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        conn.execute(f"SELECT messages.health({arguments})".encode())
    assert raised.value.sqlstate == "PQ004"
    with pytest.raises(InvalidArgument):
        run(conn, statements.health(held_for=timedelta(seconds=-1)))


# Upkeep ----------------------------------------------------------------------------------------------------------------


def test_upkeep_that_never_ran_is_critical_and_running_it_cures(conn: Connection) -> None:
    never = check(conn, "upkeep_lag")
    assert (never.severity, never.finding) == ("critical", "no upkeep ever ran")
    assert never.cure is not None
    assert "DAG pgqueue_upkeep" in never.cure
    cure(conn, never.cure)
    assert check(conn, "upkeep_lag").severity == "ok"


@pytest.mark.parametrize(("minutes", "severity"), [(2, "ok"), (4, "warning"), (16, "critical")])
def test_upkeep_that_is_late_names_its_age_and_who_did_it(
    connect: Callable[..., Connection], minutes: int, severity: str
) -> None:
    conn = connect(application_name="dag pgqueue_upkeep")
    run(conn, statements.upkeep())
    conn.execute("UPDATE messages.upkeep_run SET finished_at = finished_at - make_interval(mins => %s)", [minutes])
    late = check(conn, "upkeep_lag")
    assert late.severity == severity
    assert re.search(rf"was 00:0?{minutes:02}:\d\d ago, by dag pgqueue_upkeep", late.finding)
    if late.cure:
        cure(conn, late.cure)
    assert check(conn, "upkeep_lag").severity == "ok"


def test_a_schedule_that_is_overdue_is_named_and_running_the_schedules_cures(
    conn: Connection, queue: Callable[..., str]
) -> None:
    conn.execute("SELECT messages.schedule('nightly', '* * * * *', %s, '1')", [queue()])
    assert check(conn, "schedules").finding == "1 schedules are on time"
    conn.execute("UPDATE messages.schedule SET checked_until = checked_until - interval '10 minutes'")
    late = check(conn, "schedules")
    assert late.severity == "warning"
    assert re.search(r"schedule nightly is late by 00:0[89]:", late.finding)
    cure(conn, late.cure)
    assert check(conn, "schedules").severity == "ok"


# pg_cron ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cron_conn(cron_dsn: str) -> Iterator[Connection]:
    """An autocommit session to the database of pg_cron, named as no upkeep is."""
    with psycopg.connect(cron_dsn, autocommit=True, application_name="by hand") as conn:
        yield conn


@pytest.mark.cron
def test_pg_cron_without_a_job_is_a_finding_while_nobody_does_the_upkeep(cron_conn: Connection) -> None:
    for name in ("upkeep_lag", "cron_jobs"):
        assert check(cron_conn, name).severity != "ok"
    cure(cron_conn, check(cron_conn, "cron_jobs").cure)
    assert check(cron_conn, "cron_jobs").severity == "ok"
    cure(cron_conn, check(cron_conn, "upkeep_lag").cure)
    assert {check(cron_conn, name).severity for name in ("upkeep_lag", "cron_jobs")} == {"ok"}


@pytest.mark.cron
def test_moving_from_pg_cron_to_airflow_and_back_shows_in_mode_lag_and_jobs(cron_conn: Connection) -> None:
    run(cron_conn, statements.install_cron())
    assert run(cron_conn, statements.upkeep_mode()) == "pg_cron"
    assert "does the upkeep as postgres" in check(cron_conn, "cron_jobs").finding

    run(cron_conn, statements.uninstall_cron())
    assert run(cron_conn, statements.upkeep_mode()) == "airflow"
    assert "nobody else does it" in check(cron_conn, "cron_jobs").finding
    run(cron_conn, statements.upkeep())
    assert check(cron_conn, "upkeep_lag").finding.endswith("by by hand; it is due every minute")
    moved = check(cron_conn, "cron_jobs")
    assert (moved.severity, moved.finding) == ("ok", "pg_cron has no job for the upkeep; by hand does it")

    cron_conn.execute("UPDATE messages.upkeep_run SET finished_at = finished_at - interval '4 minutes'")
    assert check(cron_conn, "upkeep_lag").cure == "SELECT messages.install_cron(), messages.upkeep()"
    cure(cron_conn, check(cron_conn, "cron_jobs").cure)
    assert run(cron_conn, statements.upkeep_mode()) == "pg_cron"
    assert check(cron_conn, "cron_jobs").severity == "ok"


@pytest.mark.cron
@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("SELECT cron.unschedule('messages:schedules')", r"pg_cron has no job for schedules"),
        ("SELECT cron.unschedule('messages:upkeep')", r"pg_cron has no job for upkeep"),
        (
            "SELECT cron.alter_job(jobid, active => false) FROM cron.job WHERE jobname = 'messages:upkeep'",
            r"pg_cron job \d+ \(upkeep\) is not active",
        ),
        (
            "SELECT cron.schedule('mine', '* * * * *', 'SELECT messages.upkeep()')",
            r"2 active jobs of pg_cron do the upkeep",
        ),
    ],
)
def test_a_job_that_is_missing_inactive_or_double_is_named_and_cured(
    cron_conn: Connection, damage: str, finding: str
) -> None:
    run(cron_conn, statements.install_cron())
    cron_conn.execute(damage.encode())
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "warning"
    assert re.fullmatch(finding, found.finding)
    cure(cron_conn, found.cure)
    assert check(cron_conn, "cron_jobs").severity == "ok"
    assert run(cron_conn, statements.upkeep_mode()) == "pg_cron"


@pytest.mark.cron
def test_a_job_that_fails_is_critical_with_what_postgresql_said(cron_conn: Connection) -> None:
    run(cron_conn, statements.install_cron())
    cron_conn.execute("SELECT cron.schedule('messages:upkeep', '* * * * *', 'SELECT messages.upkeep(), 1/0')")
    deadline = time.monotonic() + 75
    while (found := check(cron_conn, "cron_jobs")).severity == "ok":
        assert time.monotonic() < deadline
        list(cron_conn.notifies(timeout=1.0))
    assert found.severity == "critical"
    assert re.search(r"last run of pg_cron job \d+ \(upkeep\) failed: ERROR: +division by zero", found.finding)
    cure(cron_conn, found.cure)
    assert check(cron_conn, "cron_jobs").severity == "ok"


@pytest.mark.cron
def test_run_history_of_our_jobs_is_purged_even_after_they_were_made_anew(cron_conn: Connection) -> None:
    run(cron_conn, statements.install_cron())
    cron_conn.execute(
        "INSERT INTO cron.job_run_details (jobid, runid, database, username, command, status, start_time, end_time)"
        " SELECT jobid, row_number() OVER (), current_database(), 'postgres', run.command, run.status, run.at, run.ended"
        "   FROM cron.job CROSS JOIN (VALUES"
        "        ('SELECT messages.upkeep()', 'failed', NULL::timestamptz, NULL::timestamptz),"
        "        ('SELECT messages.run_schedules()', 'succeeded', now() - interval '8 days', now() - interval '8 days'),"
        "        ('SELECT messages.upkeep()', 'succeeded', now(), now()),"
        "        ('SELECT mine()', 'succeeded', now() - interval '9 days', now() - interval '9 days')"
        "   ) AS run (command, status, at, ended) WHERE jobname = 'messages:upkeep'"
    )
    run(cron_conn, statements.install_cron())
    old = check(cron_conn, "cron_history")
    assert old.severity == "warning"
    assert old.finding.startswith("1 run of ours older than 7 days")
    cure(cron_conn, old.cure)
    assert check(cron_conn, "cron_history").severity == "ok"
    left = cron_conn.execute("SELECT command FROM cron.job_run_details WHERE runid <= 4 ORDER BY command").fetchall()
    assert left == [("SELECT messages.upkeep()",), ("SELECT mine()",)]


@pytest.mark.cron
def test_a_job_of_a_superuser_is_given_to_the_owner_of_the_functions(cron_dsn: str, role: str) -> None:
    with psycopg.connect(cron_dsn, autocommit=True) as admin:
        own(admin, role)
        run(admin, statements.install_cron())
        hidden = check(admin, "cron_jobs")
        assert hidden.finding == f"role {role} may not look at the jobs of pg_cron"
        cure(admin, hidden.cure)
        # The row that the upkeep of that job would leave.
        admin.execute("SET application_name = 'pg_cron'")
        run(admin, statements.upkeep())
        foreign = check(admin, "cron_jobs")
        assert foreign.severity == "warning"
        assert foreign.finding == f"pg_cron does the upkeep in a job that role {role} cannot see"
        cure(admin, foreign.cure)
        assert re.fullmatch(rf"pg_cron job \d+ does the upkeep as {role}", check(admin, "cron_jobs").finding)
        admin.execute("SELECT cron.unschedule(jobid) FROM cron.job")


# Who holds back VACUUM --------------------------------------------------------------------------------------------------


@pytest.fixture
def role(cluster: Cluster) -> Iterator[str]:
    """The name of a role that is no superuser, gone after the test with all it owns in any database."""
    name = "queue_owner"
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        yield name
        for (database,) in admin.execute("SELECT datname FROM pg_database WHERE datallowconn").fetchall():
            with psycopg.connect(cluster.dsn(database), autocommit=True) as conn:
                conn.execute(f"REASSIGN OWNED BY {name} TO postgres; DROP OWNED BY {name}".encode())
        admin.execute(f"DROP ROLE {name}".encode())


def own(conn: Connection, role: str) -> None:
    """Give the schema to a role, as if it had installed it."""
    conn.execute(f"GRANT CREATE ON DATABASE {conn.info.dbname} TO {role}".encode())
    rows = conn.execute(
        "SELECT format('ALTER FUNCTION %%s OWNER TO %%I', oid::regprocedure, %(role)s) FROM pg_proc"
        " WHERE pronamespace = 'messages'::regnamespace"
        " UNION ALL SELECT format('ALTER %%s %%s OWNER TO %%I', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW'"
        " ELSE 'TABLE' END, oid::regclass, %(role)s) FROM pg_class c WHERE relnamespace = 'messages'::regnamespace"
        " AND relkind IN ('r', 'p', 'S', 'v') AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i'"
        " AND c.relkind = 'S')"
        " UNION ALL SELECT format('ALTER SCHEMA messages OWNER TO %%I', %(role)s)",
        {"role": role},
    ).fetchall()
    for (statement,) in rows:
        conn.execute(statement.encode())


def test_the_session_that_holds_a_snapshot_is_named_without_what_it_runs(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    reader = connect(autocommit=False, application_name="nightly report")
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT 'secret'")
    held = check(conn, "held_snapshot", held_for=AT_ONCE)
    assert held.severity == "critical"
    assert f"session {pid_of(reader)} (application nightly report, idle in transaction)" in held.finding
    assert re.search(r"open for 00:00:\d\d", held.finding)
    assert "secret" not in str(held)
    assert held.cure == f"SELECT pg_terminate_backend({pid_of(reader)})"
    assert check(conn, "held_snapshot", held_for=timedelta(hours=1)).severity == "ok"
    assert check(conn, "held_snapshot").severity == "ok"
    cure(conn, held.cure)
    gone(conn, pid_of(reader))
    assert check(conn, "held_snapshot", held_for=AT_ONCE).severity == "ok"


def test_a_snapshot_is_a_warning_first_and_critical_after_twelve_times_as_long(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    writer = connect(autocommit=False)
    writer.execute("SELECT pg_current_xact_id()")
    (age,) = conn.execute(
        "SELECT clock_timestamp() - xact_start FROM pg_stat_activity WHERE pid = %s", [pid_of(writer)]
    ).fetchone() or (None,)
    assert check(conn, "held_snapshot", held_for=age + timedelta(minutes=1)).severity == "ok"
    assert check(conn, "held_snapshot", held_for=age).severity == "warning"
    assert check(conn, "held_snapshot", held_for=age / 12).severity == "critical"


def test_a_writer_that_is_idle_in_its_transaction_holds_back_vacuum_too(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    writer = connect(autocommit=False, application_name="forgotten psql")
    writer.execute("SELECT pg_current_xact_id()")
    assert "application forgotten psql" in check(conn, "held_snapshot", held_for=AT_ONCE).finding


def test_a_snapshot_in_another_database_does_not_hold_back_ours(conn: Connection, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        assert check(conn, "held_snapshot", held_for=AT_ONCE).finding == "no session holds a snapshot"


def test_an_owner_who_may_not_see_other_sessions_says_so_and_what_to_grant(
    conn: Connection, connect: Callable[..., Connection], role: str
) -> None:
    own(conn, role)
    reader = connect(autocommit=False, application_name="nightly report")
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT 1")
    assert [one.check_name for one in run(conn, statements.health()) if "not checked" in one.finding] == []
    blind = check(conn, "held_snapshot", held_for=AT_ONCE)
    assert blind.severity == "warning"
    assert f"session {pid_of(reader)} (application nightly report" in blind.finding
    assert f"hide their age from role {role}" in blind.finding
    assert blind.cure == f"GRANT pg_read_all_stats TO {role}"
    cure(conn, blind.cure)
    assert check(conn, "held_snapshot", held_for=AT_ONCE).severity == "critical"


@pytest.fixture(scope="module")
def wide_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a database on a durable server with prepared transactions and logical slots."""
    cluster = Cluster(STATE / "tests" / f"postgres-{os.getpid()}" / "wide", kind=request.config.getoption("--pg"))
    try:
        cluster.start()
        with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
            conn.execute("ALTER SYSTEM SET wal_level = logical")
        cluster.restart()
        dsn = cluster.create_database("wide")
        with psycopg.connect(dsn, autocommit=True) as conn:
            migrate(conn)
        yield dsn
    finally:
        cluster.destroy()


@pytest.fixture
def wide(wide_dsn: str) -> Iterator[Connection]:
    """An autocommit session to that server."""
    with psycopg.connect(wide_dsn, autocommit=True) as conn:
        yield conn


def test_a_durable_server_with_its_upkeep_done_is_healthy(wide: Connection) -> None:
    run(wide, statements.upkeep())
    assert [one for one in run(wide, statements.health()) if one.severity != "ok"] == []


def test_a_prepared_transaction_that_was_forgotten_is_named_and_cured(wide: Connection) -> None:
    wide.execute("BEGIN; SELECT pg_current_xact_id()")
    wide.execute("PREPARE TRANSACTION 'it''s lost'")
    lost = check(wide, "prepared_transaction", held_for=AT_ONCE)
    assert lost.severity == "critical"
    assert "prepared transaction 'it''s lost' of postgres" in lost.finding
    assert check(wide, "prepared_transaction").severity == "ok"
    cure(wide, lost.cure)
    assert check(wide, "prepared_transaction", held_for=AT_ONCE).finding == "no prepared transaction"


def test_a_replication_slot_that_nobody_uses_is_named_and_cured(wide: Connection) -> None:
    wide.execute("SELECT pg_create_logical_replication_slot('left_over', 'test_decoding')" if _has_decoder(wide) else
                 "SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
    slot = check(wide, "replication")
    assert slot.severity == "warning"
    assert re.fullmatch(r"replication slot left_over \(nobody uses it\) holds back VACUUM by \d+ transactions", slot.finding)
    cure(wide, slot.cure)
    assert check(wide, "replication").severity == "ok"
