"""health(): each check is provoked for real, its fix is executed, and the finding is gone."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import pq, sql

from airflow_provider_pgqueue.core import InvalidArgument, migrate, run, verbs
from airflow_provider_pgqueue.core.installation import CRON_ROLE
from airflow_provider_pgqueue.core.message import Finding
from tests.waiting import until
from tools.postgres import Cluster

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
AT_ONCE = timedelta(0)
CHECKS = [
    "maintenance_lag",
    "maintenance_steps",
    "cron_jobs",
    "cron_history",
    "dispatches",
    "held_snapshot",
    "dead_tuples",
    "notify_queue",
    "archive_partitions",
    "retention",
    "copy",
    "grants",
    "limited_roles",
    "dead_messages",
    "groups",
    "waiting_messages",
]
# What has limits, or depends on what the owner of health() may see.
WHOLE = ["cron_jobs", "cron_history", "held_snapshot", "dead_messages", "groups", "waiting_messages"]


def check(conn: Connection, check_name: str, **limits: timedelta) -> Finding:
    """What health() says about one thing; where it can be asked alone, that takes a twentieth of the time."""
    if check_name not in WHOLE:
        return Finding(check_name, *internal(conn, f"health_{check_name}"))
    (found,) = [one for one in run(conn, verbs.health(**limits)) if one.check_name == check_name]
    return found


def internal(conn: Connection, function: str, **limits: float) -> tuple[Any, ...]:
    """Severity, finding and fix of one check with other limits than those of health()."""
    given = [sql.SQL("{} => {}").format(sql.Identifier(name), value) for name, value in limits.items()]
    call = sql.SQL("SELECT severity, finding, fix FROM messages.{}({})")
    (row,) = conn.execute(call.format(sql.Identifier(function), sql.SQL(", ").join(given))).fetchall()
    return row


def fix(conn: Connection, script: str | None) -> None:
    """Run a fix as psql would: one statement after the other."""
    for statement in script.split("; "):
        conn.execute(statement.encode())


def pid_of(conn: Connection) -> int:
    return conn.info.backend_pid


def gone(conn: Connection, pid: int) -> None:
    """Wait until the server has ended a session."""
    until(lambda: not conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount)


def test_each_check_has_one_row_and_a_fix_unless_it_is_ok(conn: Connection) -> None:
    found = run(conn, verbs.health())
    assert [one.check_name for one in found] == CHECKS
    assert [one for one in found if one.finding.startswith("not checked")] == []
    assert {one.severity for one in found} <= {"ok", "warning", "critical"}
    assert [one for one in found if (one.fix is None) != (one.severity == "ok")] == []


def test_health_only_reads_and_runs_in_a_read_only_transaction(conn: Connection) -> None:
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        assert len(run(conn, verbs.health())) == len(CHECKS)
        assert conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)


def test_health_reads_a_bounded_number_of_messages_whatever_waits(
    conn: Connection, connect: Callable[..., Connection], queue: Callable[..., str]
) -> None:
    conn.execute("SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, 20000) n))", [queue()])
    conn.execute("SELECT messages.consume('orders', 1000)")
    conn.execute("SELECT messages.publish('orders', '1', priority => 7)")
    conn.execute("SELECT messages.publish('default', '1'), messages.alter_queue('default', paused => true)")
    fresh = connect()
    with fresh.transaction():
        run(fresh, verbs.health())
        row = fresh.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables"
            " WHERE relname ~ '^(message|archive|timer)'"
        ).fetchone()
    assert row[0] < 100


def test_a_check_that_cannot_run_is_a_row_and_the_others_are_there(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    holder = connect(autocommit=False, application_name="rewriter")
    holder.execute("LOCK TABLE messages.dead_message IN ACCESS EXCLUSIVE MODE")
    found = {one.check_name: one for one in run(conn, verbs.health())}
    assert list(found) == CHECKS
    locked = found["dead_messages"]
    assert locked.severity == "warning"
    assert "not checked: canceling statement due to lock timeout" in locked.finding
    assert (pid_of(holder), "rewriter") in [row[:2] for row in conn.execute(locked.fix.encode()).fetchall()]


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize("arguments", ["NULL", "'-1 second'", "waiting_for => NULL", "waiting_for => '-1 day'"])
def test_a_limit_that_is_no_duration_is_refused(conn: Connection, arguments: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        conn.execute(f"SELECT messages.health({arguments})".encode())
    assert raised.value.sqlstate == "PQ004"
    with pytest.raises(InvalidArgument):
        run(conn, verbs.health(held_for=timedelta(seconds=-1)))


@pytest.mark.parametrize(("minutes", "severity"), [(4, "warning"), (16, "critical")])
def test_an_installation_without_maintenance_is_given_as_long_as_a_maintenance_run(
    conn: Connection, minutes: int, severity: str
) -> None:
    conn.execute("UPDATE messages.schema_migration SET applied_at = now()")
    assert check(conn, "maintenance_lag").severity == "ok"
    conn.execute("UPDATE messages.schema_migration SET applied_at = now() - make_interval(mins => %s)", [minutes])
    never = check(conn, "maintenance_lag")
    assert never.severity == severity
    assert re.match(rf"no maintenance ran since the installation 00:{minutes:02}:\d\d ago;", never.finding)
    assert "DAG pgqueue_maintenance" in never.fix
    fix(conn, never.fix)
    assert check(conn, "maintenance_lag").severity == "ok"


@pytest.mark.parametrize(("minutes", "severity"), [(2, "ok"), (4, "warning"), (16, "critical")])
def test_maintenance_that_is_late_names_its_age_and_who_did_it(
    connect: Callable[..., Connection], minutes: int, severity: str
) -> None:
    conn = connect(application_name="dag pgqueue_maintenance")
    run(conn, verbs.maintain())
    conn.execute("UPDATE messages.maintenance_run SET finished_at = finished_at - make_interval(mins => %s)", [minutes])
    late = check(conn, "maintenance_lag")
    assert late.severity == severity
    assert re.search(rf"was 00:0?{minutes:02}:\d\d ago, by dag pgqueue_maintenance", late.finding)
    if late.fix:
        fix(conn, late.fix)
    assert check(conn, "maintenance_lag").severity == "ok"


def test_a_dispatch_that_nobody_reconciles_is_named_until_its_run_is_seen(
    conn: Connection, queue: Callable[..., str]
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    (one,) = run(conn, verbs.dispatch_messages("orders", "pack"))
    assert check(conn, "dispatches") == Finding("dispatches", "ok", "open dispatches: 1")
    for hours, severity in ((4, "warning"), (7, "critical")):
        conn.execute("UPDATE messages.dispatch SET opened_at = clock_timestamp() - make_interval(hours => %s)", [hours])
        found = check(conn, "dispatches")
        assert found.severity == severity
        assert f"run {one.run_id} of DAG pack was last seen 0{hours}:00:0" in found.finding
        assert "PgQueueReconcileOperator" in (found.fix or "")
    # What the operator does.
    run(conn, verbs.extend_dispatches([one.dispatch_id]))
    assert check(conn, "dispatches").severity == "ok"


@pytest.mark.cron
def test_pg_cron_without_a_job_is_a_finding_while_nobody_runs_maintenance(cron_conn: Connection) -> None:
    cron_conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
    assert "nobody else does it" in check(cron_conn, "cron_jobs").finding
    fix(cron_conn, check(cron_conn, "cron_jobs").fix)
    assert check(cron_conn, "cron_jobs").severity == "ok"
    cron_conn.execute("UPDATE messages.schema_migration SET applied_at = now() - interval '1 hour'")
    late = check(cron_conn, "maintenance_lag").fix
    assert "the check cron_jobs says how" in late
    fix(cron_conn, late)
    assert {check(cron_conn, name).severity for name in ("maintenance_lag", "cron_jobs")} == {"ok"}


def test_who_says_that_pg_cron_has_maintenance_and_does_none_keeps_nobody_from_it(conn: Connection, role: str) -> None:
    conn.execute(f"GRANT messages_maintenance TO {role}".encode())
    run(conn, verbs.maintain())
    conn.execute("UPDATE messages.maintenance_run SET finished_at = finished_at - interval '7 minutes'")
    conn.execute(f"SET ROLE {role}; SET application_name = 'pg_cron'; SELECT messages.expect_cron('{role}')".encode())
    assert run(conn, verbs.maintenance_mode()) == "airflow"
    run(conn, verbs.maintain())
    assert run(conn, verbs.maintenance_mode()) == "pg_cron"


@pytest.mark.cron
def test_moving_from_pg_cron_to_airflow_and_back_shows_in_mode_lag_and_jobs(cron_conn: Connection) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    assert run(cron_conn, verbs.maintenance_mode()) == "pg_cron"
    assert "runs maintenance as messages_cron" in check(cron_conn, "cron_jobs").finding

    run(cron_conn, verbs.uninstall_cron())
    assert run(cron_conn, verbs.maintenance_mode()) == "airflow"
    assert "nobody else does it" in check(cron_conn, "cron_jobs").finding
    run(cron_conn, verbs.maintain())
    assert check(cron_conn, "maintenance_lag").finding.endswith("by by hand; it is due every minute")
    moved = check(cron_conn, "cron_jobs")
    assert (moved.severity, moved.finding) == ("ok", "pg_cron has no job for maintenance; by hand does it")

    cron_conn.execute("UPDATE messages.maintenance_run SET finished_at = finished_at - interval '4 minutes'")
    fix(cron_conn, check(cron_conn, "cron_jobs").fix)
    assert run(cron_conn, verbs.maintenance_mode()) == "pg_cron"
    assert check(cron_conn, "cron_jobs").severity == "ok"


@pytest.mark.cron
@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (
            "SELECT cron.unschedule(jobid) FROM cron.job;"
            " UPDATE messages.maintenance_run SET cron_at = cron_at - interval '4 minutes'",
            r"pg_cron did no maintenance for 00:04:0\d.*",
        ),
        (
            "SELECT cron.alter_job(jobid, active => false) FROM cron.job WHERE jobname = 'messages:maintenance'",
            r"pg_cron job \d+ \(maintenance\) is not active",
        ),
    ],
)
def test_a_job_that_is_missing_or_inactive_is_named_and_fixed(cron_conn: Connection, damage: str, finding: str) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute(damage.encode())
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "warning"
    assert re.fullmatch(finding, found.finding)
    fix(cron_conn, found.fix)
    assert check(cron_conn, "cron_jobs").severity == "ok"
    assert run(cron_conn, verbs.maintenance_mode()) == "pg_cron"


@pytest.mark.cron
def test_a_second_job_for_maintenance_is_named_and_removed(cron_conn: Connection, role: str) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute(f"GRANT messages_maintenance TO {role}".encode())
    cron_conn.execute(
        "SELECT cron.schedule_in_database("
        " 'messages:maintenance', '* * * * *', 'SELECT messages.maintain()', current_database(), %s)",
        [role],
    )
    double = check(cron_conn, "cron_jobs")
    assert (double.severity, double.finding) == ("warning", "2 active jobs of pg_cron run maintenance")
    fix(cron_conn, double.fix)
    assert check(cron_conn, "cron_jobs").finding.endswith("runs maintenance as messages_cron")


@pytest.mark.cron
def test_a_job_that_publishes_and_fails_is_a_warning_until_a_run_succeeds(cron_conn: Connection, role: str) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    schedule = "SELECT cron.schedule_in_database(%s, '0 3 * * *', %s, current_database(), %s)"
    ((job,),) = cron_conn.execute(schedule, ["nightly", "SELECT messages.publish('orders', '1')", role]).fetchall()
    cron_conn.execute(schedule, ["not ours", "SELECT other_messages.publish()", role])
    assert check(cron_conn, "cron_jobs").severity == "ok"
    ran = (
        "INSERT INTO cron.job_run_details (jobid, runid, database, command, status, return_message)"
        " SELECT jobid, %s, database, command, %s, %s FROM cron.job WHERE jobid = %s"
    )
    cron_conn.execute(ran, [1_000_001, "failed", "connection failed", job])
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "warning"
    assert found.finding == f"the last run of pg_cron job {job} (nightly), as {role}, failed: connection failed"
    cron_conn.execute(ran, [1_000_002, "succeeded", "1 row", job])
    assert check(cron_conn, "cron_jobs").severity == "ok"


@pytest.mark.cron
def test_a_job_that_publishes_as_a_superuser_is_critical(cron_conn: Connection) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute("SELECT cron.schedule('nightly', '0 3 * * *', 'SELECT messages.publish(''orders'', ''1'')')")
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "critical"
    assert "(nightly) runs as the superuser postgres" in found.finding
    fix(cron_conn, found.fix)
    assert check(cron_conn, "cron_jobs").severity == "ok"


def schedule_by_hand(conn: Connection, name: str, command: str) -> None:
    call = "SELECT cron.schedule_in_database(%s, '* * * * *', %s, current_database(), %s)"
    conn.execute(call, [name, command, CRON_ROLE])


@pytest.mark.cron
def test_a_job_of_another_name_is_well_as_long_as_it_runs(cron_session: Connection) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    run(cron_session, verbs.uninstall_cron())
    schedule_by_hand(cron_session, "mine", "SELECT messages.maintain()")
    assert "did no maintenance yet" in check(cron_session, "cron_jobs").finding
    maintenance_of_pg_cron(cron_session)
    own_name = check(cron_session, "cron_jobs")
    assert (own_name.severity, own_name.fix) == ("ok", None)
    assert re.fullmatch(r"pg_cron job \d+ runs maintenance as messages_cron", own_name.finding)


@pytest.mark.cron
def test_run_history_of_our_jobs_is_purged_even_after_they_were_made_anew(cron_conn: Connection) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute(
        """
        INSERT INTO cron.job_run_details (jobid, runid, database, username, command, status, start_time, end_time)
        SELECT j.jobid, run.runid, current_database(), 'postgres', run.command, run.status, run.ended, run.ended
          FROM cron.job j CROSS JOIN (VALUES
               (1, 'SELECT messages.maintain()', 'failed', NULL::timestamptz),
               (2, 'SELECT messages.maintain()', 'succeeded', now() - interval '8 days'),
               (3, 'SELECT messages.maintain()', 'succeeded', now()),
               (4, 'SELECT mine()', 'succeeded', now() - interval '9 days')
          ) AS run (runid, command, status, ended)
         WHERE j.jobname = 'messages:maintenance'
        """
    )
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    old = check(cron_conn, "cron_history")
    assert old.severity == "warning"
    assert old.finding.startswith("runs of ours older than 7 days in the history of pg_cron: 1;")
    fix(cron_conn, old.fix)
    assert check(cron_conn, "cron_history").severity == "ok"
    left = cron_conn.execute("SELECT command FROM cron.job_run_details WHERE runid <= 4 ORDER BY command").fetchall()
    assert left == [("SELECT messages.maintain()",), ("SELECT mine()",)]


@pytest.mark.cron
def test_the_login_of_the_jobs_purges_their_history_where_the_owner_may_not(cron_session: Connection) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    cron_session.execute("GRANT USAGE ON SCHEMA cron TO messages_cron")
    cron_session.execute(HIDDEN["the rows"].encode())
    cron_session.execute(
        "INSERT INTO cron.job_run_details (jobid, runid, database, username, command, status, start_time, end_time)"
        " SELECT jobid, runid, database, username, command, 'succeeded', past, past FROM cron.job,"
        " (VALUES (1, now() - interval '9 days'), (2, now() - interval '8 days'), (3, now())) AS old (runid, past)"
        " WHERE jobname = 'messages:maintenance'"
    )
    ((command,),) = cron_session.execute(
        "SELECT command FROM cron.job WHERE jobname = 'messages:maintenance'"
    ).fetchall()
    cron_session.execute("SELECT cron.alter_job(jobid, active => false) FROM cron.job")
    try:
        with psycopg.connect(cron_session.info.dsn, user=CRON_ROLE, autocommit=True) as job:
            job.execute(command)
        assert cron_session.execute("SELECT runid FROM cron.job_run_details WHERE runid <= 3").fetchall() == [(3,)]
    finally:
        cron_session.execute("REVOKE ALL ON SCHEMA cron FROM messages_cron")


def maintenance_of_pg_cron(conn: Connection, role: str = CRON_ROLE) -> None:
    """What a maintenance run by pg_cron as this login leaves."""
    with psycopg.connect(conn.info.dsn, user=role, autocommit=True, application_name="pg_cron") as job:
        run(job, verbs.maintain())


def pass_minutes(conn: Connection, minutes: int) -> None:
    conn.execute(
        "UPDATE messages.maintenance_run SET finished_at = finished_at - make_interval(mins => %(minutes)s),"
        " cron_at = cron_at - make_interval(mins => %(minutes)s)",
        {"minutes": minutes},
    )


HIDDEN = {
    "the schema": "REVOKE ALL ON SCHEMA cron FROM messages_owner",
    "the rows": "DROP POLICY messages_owner ON cron.job; DROP POLICY messages_owner ON cron.job_run_details",
}


@pytest.mark.cron
@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_job_that_the_owner_cannot_see_is_checked_by_what_it_did(cron_session: Connection, hidden: str) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    cron_session.execute(HIDDEN[hidden].encode())
    maintenance_of_pg_cron(cron_session)
    assert check(cron_session, "cron_jobs") == Finding(
        "cron_jobs", "ok", "pg_cron runs maintenance as messages_cron, in a job that role messages_owner cannot see"
    )
    assert run(cron_session, verbs.maintenance_mode()) == "pg_cron"
    pass_minutes(cron_session, 4)
    late = check(cron_session, "cron_jobs")
    assert late.severity == "warning"
    assert late.finding.startswith("pg_cron did no maintenance for 00:04:0")
    assert run(cron_session, verbs.maintenance_mode()) == "airflow"
    run(cron_session, verbs.maintain())
    assert check(cron_session, "cron_jobs").finding == "pg_cron has no job for maintenance; by hand does it"
    maintenance_of_pg_cron(cron_session, "postgres")
    powerful = check(cron_session, "cron_jobs")
    assert (powerful.severity, powerful.finding.partition(",")[0]) == (
        "critical",
        "pg_cron runs maintenance as the superuser postgres",
    )
    fix(cron_session, powerful.fix)
    assert check(cron_session, "cron_jobs").severity == "ok"


@pytest.mark.cron
@pytest.mark.parametrize(
    ("command", "finding"),
    [
        ("SELECT 1", "pg_cron has no job for maintenance, and nobody else does it"),
        ("SELECT messages.maintain()", "pg_cron has no job for maintenance, and nobody else does it"),
    ],
)
def test_a_job_of_a_stranger_does_not_pass_for_maintenance_by_its_name(
    cron_conn: Connection, role: str, command: str, finding: str
) -> None:
    cron_conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
    cron_conn.execute(
        "SELECT cron.schedule_in_database('messages:maintenance', '* * * * *', %s, current_database(), %s)",
        [command, role],
    )
    assert run(cron_conn, verbs.maintenance_mode()) == "airflow"
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "warning"
    assert found.finding.startswith(finding)
    fix(cron_conn, found.fix)
    assert check(cron_conn, "cron_jobs").finding.endswith("runs maintenance as messages_cron")


@pytest.mark.cron
def test_a_job_for_another_database_does_not_pass_and_is_not_removed(cron_conn: Connection) -> None:
    cron_conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
    cron_conn.execute(
        "SELECT cron.schedule_in_database("
        "'messages:maintenance', '* * * * *', 'SELECT messages.maintain()', 'postgres')"
    )
    assert run(cron_conn, verbs.maintenance_mode()) == "airflow"
    assert check(cron_conn, "cron_jobs").severity == "warning"
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    run(cron_conn, verbs.uninstall_cron())
    assert cron_conn.execute("SELECT DISTINCT database FROM cron.job").fetchall() == [("postgres",)]


@pytest.mark.cron
def test_a_job_that_is_there_and_does_nothing_is_no_maintenance(cron_session: Connection) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    assert check(cron_session, "cron_jobs").severity == "ok"
    pass_minutes(cron_session, 4)
    assert run(cron_session, verbs.maintenance_mode()) == "airflow"
    idle = check(cron_session, "cron_jobs")
    assert idle.severity == "warning"
    assert re.match(r"pg_cron job \d+ did no maintenance for 00:04:0\d$", idle.finding)
    fix(cron_session, idle.fix)
    assert check(cron_session, "cron_jobs").severity == "ok"
    maintenance_of_pg_cron(cron_session)
    assert run(cron_session, verbs.maintenance_mode()) == "pg_cron"


@pytest.mark.cron
def test_a_job_of_a_superuser_is_refused_and_critical_until_another_login_has_it(cron_conn: Connection) -> None:
    refused = pytest.raises(InvalidArgument, match=r"role postgres is a superuser.*run_as => 'messages_cron'")
    with refused, cron_conn.transaction():
        run(cron_conn, verbs.install_cron())
    run(cron_conn, verbs.install_cron("postgres"))
    found = check(cron_conn, "cron_jobs")
    assert found.severity == "critical"
    assert "(messages:maintenance) runs as the superuser postgres" in found.finding
    fix(cron_conn, found.fix)
    assert check(cron_conn, "cron_jobs").severity == "ok"
    owners = "SELECT DISTINCT username FROM cron.job WHERE jobname LIKE 'messages:%'"
    assert cron_conn.execute(owners).fetchall() == [(CRON_ROLE,)]


@pytest.mark.cron
def test_the_login_of_the_jobs_has_to_be_able_to_run_maintenance(cron_conn: Connection, role: str) -> None:
    with pytest.raises(InvalidArgument, match="role 'messages_maintenance' may not log in"), cron_conn.transaction():
        run(cron_conn, verbs.install_cron("messages_maintenance"))
    refused = pytest.raises(
        InvalidArgument, match=f"may not execute messages.maintain.*GRANT messages_maintenance TO {role}"
    )
    with refused, cron_conn.transaction():
        run(cron_conn, verbs.install_cron(role))


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
        """
        SELECT format('ALTER ROUTINE %s OWNER TO', oid::regprocedure)
          FROM pg_proc WHERE pronamespace = 'messages'::regnamespace
        UNION ALL
        SELECT format('ALTER %s %s OWNER TO',
                      CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass)
          FROM pg_class c
         WHERE relnamespace = 'messages'::regnamespace AND relkind IN ('r', 'p', 'S', 'v')
           AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i' AND c.relkind = 'S')
        UNION ALL
        SELECT 'ALTER SCHEMA messages OWNER TO'
        """
    ).fetchall()
    for (statement,) in rows:
        conn.execute(f"{statement} {role}".encode())


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
    assert held.fix == f"SELECT pg_terminate_backend({pid_of(reader)})"
    assert check(conn, "held_snapshot", held_for=timedelta(hours=1)).severity == "ok"
    assert check(conn, "held_snapshot").severity == "ok"
    fix(conn, held.fix)
    gone(conn, pid_of(reader))
    assert check(conn, "held_snapshot", held_for=AT_ONCE).severity == "ok"


def test_a_snapshot_is_a_warning_first_and_critical_after_twelve_times_as_long(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    writer = connect(autocommit=False)
    writer.execute("SELECT pg_current_xact_id(), pg_sleep(0.5)")
    (age,) = conn.execute(
        "SELECT clock_timestamp() - xact_start FROM pg_stat_activity WHERE pid = %s", [pid_of(writer)]
    ).fetchone() or (None,)
    assert check(conn, "held_snapshot", held_for=age + timedelta(minutes=1)).severity == "ok"
    assert check(conn, "held_snapshot", held_for=age).severity == "warning"
    assert check(conn, "held_snapshot", held_for=age / 12).severity == "critical"


def test_a_snapshot_in_another_database_does_not_hold_back_ours(conn: Connection, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        assert check(conn, "held_snapshot", held_for=AT_ONCE).finding == "nothing holds a snapshot"


def test_an_owner_who_may_not_see_other_sessions_says_so_and_what_to_grant(
    conn: Connection, connect: Callable[..., Connection], role: str
) -> None:
    own(conn, role)
    reader = connect(autocommit=False, application_name="nightly report")
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT 1")
    assert [one.check_name for one in run(conn, verbs.health()) if "not checked" in one.finding] == []
    blind = check(conn, "held_snapshot", held_for=AT_ONCE)
    assert blind.severity == "warning"
    assert f"session {pid_of(reader)} (application nightly report" in blind.finding
    assert f"that hide their age from role {role}: " in blind.finding
    assert blind.fix == f"GRANT pg_monitor TO {role}"
    fix(conn, blind.fix)
    assert check(conn, "held_snapshot", held_for=AT_ONCE).severity == "critical"


@pytest.fixture(scope="module")
def wide_dsn(another_cluster: Callable[..., Cluster]) -> str:
    """The URI of a database on a durable server with prepared transactions and logical slots."""
    cluster = another_cluster("wide", durable=True)
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        conn.execute("ALTER SYSTEM SET wal_level = logical")
    cluster.restart()
    dsn = cluster.create_database("wide")
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
    return dsn


@pytest.fixture
def wide(wide_dsn: str) -> Iterator[Connection]:
    """An autocommit session to that server."""
    with psycopg.connect(wide_dsn, autocommit=True) as conn:
        yield conn


@pytest.mark.long
def test_a_durable_server_with_its_maintenance_done_is_healthy(wide: Connection) -> None:
    run(wide, verbs.maintain())
    assert [one for one in run(wide, verbs.health()) if one.severity != "ok"] == []


def test_a_prepared_transaction_that_was_forgotten_is_named_and_the_fix_decides_nothing(wide: Connection) -> None:
    wide.execute("BEGIN; SELECT pg_current_xact_id()")
    wide.execute("PREPARE TRANSACTION 'it''s lost'")
    lost = check(wide, "held_snapshot", held_for=AT_ONCE)
    assert lost.severity == "critical"
    assert "prepared transaction 'it''s lost' of postgres holds back VACUUM" in lost.finding
    assert check(wide, "held_snapshot").severity == "ok"
    fix(wide, lost.fix)
    assert check(wide, "held_snapshot", held_for=AT_ONCE).severity == "critical"
    wide.execute("ROLLBACK PREPARED 'it''s lost'")
    assert check(wide, "held_snapshot", held_for=AT_ONCE).finding == "nothing holds a snapshot"


def test_a_replication_slot_that_nobody_uses_is_named_and_the_fix_decides_nothing(wide: Connection) -> None:
    wide.execute("SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
    slot = check(wide, "held_snapshot")
    assert slot.severity == "warning"
    assert slot.finding.startswith("replication slot left_over (nobody uses it) holds back VACUUM; transactions since")
    fix(wide, slot.fix)
    assert check(wide, "held_snapshot").severity == "warning"
    wide.execute("SELECT pg_drop_replication_slot('left_over')")
    assert check(wide, "held_snapshot").severity == "ok"


def test_a_standby_that_holds_back_vacuum_is_named(wide: Connection, wide_dsn: str) -> None:
    """A session that speaks as a standby does: it starts to replicate and sends its feedback."""
    (position, current) = wide.execute(
        "SELECT pg_current_wal_flush_lsn(), pg_current_xact_id()::text::bigint"
    ).fetchone() or (None, None)
    standby = pq.PGconn.connect(f"{wide_dsn}?replication=true&application_name=reports".encode())
    assert standby.exec_(f"START_REPLICATION {position}".encode()).status == pq.ExecStatus.COPY_BOTH
    # The transaction that a standby reports has to be one that the server still knows, so take the oldest: its own age.
    standby.put_copy_data(struct.pack("!cqIIII", b"h", 0, current, 0, 0, 0))
    standby.flush()
    until(lambda: check(wide, "held_snapshot").finding.startswith("standby"))
    found = check(wide, "held_snapshot")
    assert re.match(
        r"standby reports \(session \d+, hot_standby_feedback\) holds back VACUUM; transactions since: \d+;",
        found.finding,
    )
    assert found.severity == "ok"
    standby.finish()


def leave_dead(conn: Connection) -> None:
    """Leave 20,500 dead row versions in the table of messages, and no autovacuum."""
    conn.execute("ALTER TABLE messages.message_rows SET (autovacuum_enabled = off)")
    conn.execute("SELECT messages.publish_batch('default', (SELECT jsonb_agg(n) FROM generate_series(1, 20500) n))")
    conn.execute("DELETE FROM messages.message")
    conn.execute("SELECT pg_stat_force_next_flush()")


@pytest.mark.usefixtures("dsn")
def test_dead_versions_are_counted_with_sizes_and_last_vacuum_and_vacuum_fixes(conn: Connection) -> None:
    leave_dead(conn)
    found = check(conn, "dead_tuples")
    assert found.severity == "warning"
    assert re.match(
        r"dead versions: 20500; messages: about 0; table \d+ kB, indexes \d+ kB, .* per message; last VACUUM never",
        found.finding,
    )
    fix(conn, found.fix)
    fixed = check(conn, "dead_tuples")
    assert fixed.severity == "ok"
    assert re.search(r"^dead versions: 0; .* last VACUUM 00:00:\d\d ago$", fixed.finding)


def test_dead_versions_stay_until_the_session_that_holds_the_snapshot_is_ended(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    reader = connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT 1")
    leave_dead(conn)
    held, dead = check(conn, "held_snapshot", held_for=AT_ONCE), check(conn, "dead_tuples")
    assert "end that first" in dead.finding
    fix(conn, dead.fix)
    assert check(conn, "dead_tuples").severity == "warning"
    fix(conn, held.fix)
    gone(conn, pid_of(reader))
    fix(conn, dead.fix)
    assert check(conn, "dead_tuples").severity == "ok"


@pytest.mark.usefixtures("dsn")
def test_an_index_far_larger_than_its_messages_is_named_and_reindex_fixes(conn: Connection) -> None:
    leave_dead(conn)
    conn.execute("VACUUM (ANALYZE) messages.message_rows")
    assert check(conn, "dead_tuples").severity == "ok"
    severity, finding, found_fix = internal(conn, "health_dead_tuples", smallest=500000)
    assert severity == "warning"
    assert re.search(r"; index message_\w+: \d+ kB, \d+ bytes per message$", finding)
    while found_fix:
        assert found_fix.startswith("SET statement_timeout = 0; REINDEX INDEX CONCURRENTLY messages.message_")
        fix(conn, found_fix)
        severity, finding, found_fix = internal(conn, "health_dead_tuples", smallest=500000)
    assert severity == "ok"


def test_a_listener_in_an_open_transaction_that_fills_the_notification_queue_is_named(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    listener = connect(application_name="stuck listener")
    listener.execute("LISTEN new_message")
    listener.execute("BEGIN; SELECT 1")
    conn.execute("SELECT pg_notify('new_message', n || repeat('x', 7000)) FROM generate_series(1, 100) n")
    assert re.fullmatch(r"the notification queue of the server is 0\.\d+ % full", check(conn, "notify_queue").finding)
    severity, finding, found_fix = internal(conn, "health_notify_queue", full_at=0)
    assert severity == "warning"
    assert f"session {pid_of(listener)} (database {conn.info.dbname}, application stuck listener, idle in tr" in finding
    fix(conn, found_fix)
    gone(conn, pid_of(listener))
    # What moves the tail of the queue on is the next that notifies or listens.
    fix(conn, "NOTIFY new_message; LISTEN new_message; UNLISTEN new_message")
    assert internal(conn, "health_notify_queue", full_at=0)[0] == "ok"


def drop_partitions(conn: Connection, *times: str) -> None:
    """Drop the partitions of what is `past` and now, or `coming`."""
    of_time = "SELECT partition FROM messages.archive_partitions() WHERE (first_at > now()) = ANY (%s)"
    for (name,) in conn.execute(of_time, [[one == "coming" for one in times]]).fetchall():
        conn.execute(f"DROP TABLE {name}".encode())


@pytest.mark.parametrize(
    ("times", "severity", "finding"),
    [
        (["coming"], "warning", "none for the next period"),
        (["past", "coming"], "critical", "none for the current period"),
    ],
)
def test_a_partition_that_is_missing_is_named_and_made(
    conn: Connection, times: list[str], severity: str, finding: str
) -> None:
    drop_partitions(conn, *times)
    found = check(conn, "archive_partitions")
    assert (found.severity, found.finding.partition("; ")[2]) == (severity, finding)
    fix(conn, found.fix)
    fixed = check(conn, "archive_partitions")
    assert fixed.severity == "ok"
    assert fixed.finding.startswith("partitions: 4, from ")


@pytest.mark.parametrize("partition_by", ["month", "day"])
def test_messages_in_the_default_partition_get_a_partition_of_their_own(conn: Connection, partition_by: str) -> None:
    conn.execute("SELECT messages.partition_archive(%s)", [partition_by])
    drop_partitions(conn, "past")
    conn.execute("SELECT messages.publish('default', '1'), messages.publish('default', '2')")
    conn.execute("SELECT messages.consume('default')")
    (leased,) = run(conn, verbs.lease("default"))
    run(conn, verbs.archive(leased.lock_token, [leased.id], result="rejected"))
    before = conn.execute("SELECT * FROM messages.message_archive ORDER BY id").fetchall()
    conn.execute("SELECT messages.maintain()")
    stray = check(conn, "archive_partitions")
    assert stray.severity == "warning"
    assert stray.finding.endswith("the default partition has messages")

    fix(conn, stray.fix)
    assert check(conn, "archive_partitions").severity == "ok"
    assert conn.execute("SELECT count(*) FROM ONLY messages.message_archive_default").fetchone() == (0,)
    assert conn.execute("SELECT * FROM messages.message_archive ORDER BY id").fetchall() == before
    assert conn.execute("SELECT id FROM messages.dead_message").fetchall() == [(leased.id,)]
    conn.execute("SELECT messages.publish('default', '3')")
    (leased,) = run(conn, verbs.lease("default"))
    run(conn, verbs.archive(leased.lock_token, [leased.id], result="failed"))
    assert conn.execute("SELECT count(*) FROM messages.dead_message").fetchone() == (2,)
    assert conn.execute("SELECT messages.adopt_archive_default()").fetchone() == (None,)
    assert run(conn, verbs.maintain())["partitions_made"] == 0


def test_the_new_default_partition_is_like_the_old_one(conn: Connection) -> None:
    def default_partition() -> list[Any]:
        return conn.execute(
            """
            SELECT pg_get_expr(c.relpartbound, c.oid), c.relowner, coalesce(c.relacl, acldefault('r', c.relowner)),
                   (SELECT count(*) FROM pg_index WHERE indrelid = c.oid),
                   (SELECT array_agg(pg_get_constraintdef(oid) ORDER BY conname)
                      FROM pg_constraint WHERE conrelid = c.oid),
                   (SELECT array_agg(tgname ORDER BY tgname) FROM pg_trigger WHERE tgrelid = c.oid),
                   (SELECT array_agg((a.attname, a.atttypid, a.attnotnull, a.atthasdef)::text ORDER BY a.attname)
                      FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
              FROM pg_class c WHERE c.oid = 'messages.message_archive_default'::regclass
            """
        ).fetchall()

    drop_partitions(conn, "past", "coming")
    conn.execute("SELECT messages.publish('default', '1')")
    conn.execute("SELECT messages.consume('default')")
    before = default_partition()
    conn.execute("SELECT messages.adopt_archive_default()")
    assert default_partition() == before


@pytest.mark.parametrize(
    ("left_over", "finding"),
    [
        (
            "INSERT INTO messages.dedup (queue_name, dedup_key, id, expires_at)"
            " VALUES ('default', 'k', 1, now() - interval '2 hours')",
            "dedup keys that expired 02:00:00 ago are still kept",
        ),
        (
            "INSERT INTO messages.inbox (consumer, message_id, handled_at) VALUES ('c', 1, now() - interval '40 days')",
            "the inbox keeps 30 days and goes back 40 days",
        ),
        (
            "WITH q AS (UPDATE messages.queue SET retention = '1 day') UPDATE messages.archive_policy"
            " SET retention_applied_at = now() - interval '2 days'",
            "retention was last applied 2 days",
        ),
    ],
)
def test_what_should_be_forgotten_and_is_not_is_named_and_fixed(conn: Connection, left_over: str, finding: str) -> None:
    assert check(conn, "retention").severity == "ok"
    conn.execute(left_over.encode())
    found = check(conn, "retention")
    assert found.severity == "warning"
    assert found.finding.startswith(finding)
    assert "the archive takes" in found.finding
    fix(conn, found.fix)
    assert check(conn, "retention").severity == "ok"


def forget_partitions(conn: Connection) -> None:
    drop_partitions(conn, "past")
    conn.execute("SELECT messages.publish('default', '1')")
    conn.execute("SELECT messages.consume('default')")


LATE = """
    SELECT FROM pg_stat_activity
     WHERE pid = %s AND state = 'active' AND query_start < clock_timestamp() - interval '1.5 s'
"""
UNDIVIDED: dict[str, tuple[Callable[[Connection], object], str]] = {
    "dead_tuples": (
        leave_dead,
        "LOCK TABLE messages.message_rows IN SHARE UPDATE EXCLUSIVE MODE",
    ),
    "archive_partitions": (forget_partitions, "SELECT FROM messages.archive_policy FOR UPDATE"),
    "copy": (
        lambda conn: conn.execute("UPDATE messages.maintenance_run SET server = 1"),
        "SELECT FROM messages.maintenance_run FOR UPDATE",
    ),
}


@pytest.mark.parametrize("name", UNDIVIDED)
def test_a_fix_that_takes_long_ends_under_a_statement_timeout(
    conn: Connection, connect: Callable[..., Connection], name: str
) -> None:
    damage, held = UNDIVIDED[name]
    conn.execute("SELECT messages.maintain()")
    damage(conn)
    severity, _, found_fix = internal(conn, f"health_{name}")
    assert severity != "ok"
    holder, watcher = connect(autocommit=False), connect()
    holder.execute(held.encode())
    conn.execute("SET statement_timeout = '1s'")
    with ThreadPoolExecutor(1) as pool:
        fixed = pool.submit(fix, conn, found_fix)
        until(lambda: fixed.done() or watcher.execute(LATE, [pid_of(conn)]).rowcount)
        holder.rollback()
        fixed.result()
    assert internal(conn, f"health_{name}")[0] == "ok"


@pytest.mark.parametrize("via_root", [True, False])
def test_published_tables_whose_rows_cannot_be_told_apart_are_named_and_fixed(conn: Connection, via_root: bool) -> None:
    conn.execute("ALTER TABLE messages.message_archive_default REPLICA IDENTITY NOTHING")
    conn.execute("ALTER TABLE messages.timer REPLICA IDENTITY NOTHING")
    tables = "messages.message, messages.message_archive, messages.timer"
    options = f"publish_via_partition_root = {via_root}"
    conn.execute(f"CREATE PUBLICATION copied FOR TABLE {tables} WITH ({options})".encode())
    while (found := check(conn, "copy")).severity != "ok":
        assert re.match(r"publication copied has table (message_archive|timer)\w*, which has no replica", found.finding)
        fix(conn, found.fix)


@pytest.mark.parametrize("result", ["rejected", "failed"])
def test_dead_messages_that_nobody_decides_about_are_named_and_the_fix_discards_none(
    conn: Connection, queue: Callable[..., str], result: str
) -> None:
    run(conn, verbs.publish(queue("orders"), {"secret": 1}))
    (leased,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(leased.lock_token, [leased.id], result=result, details="no"))
    assert check(conn, "dead_messages").severity == "ok"
    found = check(conn, "dead_messages", waiting_for=AT_ONCE)
    assert found.severity == "warning"
    assert re.fullmatch(
        rf"open dead messages: 1; the oldest \({result}, of queue orders\) for 00:00:\d\d",
        found.finding,
    )
    fix(conn, found.fix)
    waits = check(conn, "dead_messages", waiting_for=AT_ONCE).severity == "warning"
    assert waits == (result == "rejected")


def test_a_queue_that_nobody_consumes_is_named(conn: Connection, queue: Callable[..., str]) -> None:
    for queue_name in ("orders", "returns"):
        run(conn, verbs.publish(queue(queue_name), 1))
    conn.execute("SELECT messages.lease('orders', lease_for => '1 millisecond')")
    assert check(conn, "waiting_messages").severity == "ok"
    found = check(conn, "waiting_messages", waiting_for=AT_ONCE)
    assert found.severity == "warning"
    assert re.search(r"of queue (orders|returns) waits for 00:00:\d\d; queues that wait too long: \d", found.finding)
    assert re.fullmatch(r"-- start a consumer of queue (orders|returns)", found.fix or "")
    for queue_name in ("orders", "returns"):
        while conn.execute("SELECT FROM messages.message WHERE queue_name = %s", [queue_name]).rowcount:
            conn.execute("SELECT messages.consume(%s)", [queue_name])
    assert check(conn, "waiting_messages", waiting_for=AT_ONCE).finding == "no message waits"


def test_messages_behind_a_leased_one_of_their_group_do_not_wait(conn: Connection, queue: Callable[..., str]) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1, 2], group_keys=["a"] * 3))
    run(conn, verbs.scan(["orders"]))  # lets the first of the group in
    assert check(conn, "waiting_messages", waiting_for=AT_ONCE).severity == "warning"
    assert len(run(conn, verbs.lease("orders"))) == 1
    assert check(conn, "waiting_messages", waiting_for=AT_ONCE).finding == "no message waits"


@pytest.mark.long
def test_what_waits_is_found_behind_many_leases_without_a_walk_over_them(
    conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    for _ in range(21):
        run(conn, verbs.publish_batch("orders", range(1000)))
    for _ in range(20):
        run(conn, verbs.lease("orders", max_messages=1000))
    asked = "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM messages.health_waiting_messages('1 day')"
    for _ in range(2):  # the first call also reads the catalogs
        ((plan,),) = conn.execute(asked).fetchall()
    assert "of queue orders" in check(conn, "waiting_messages", waiting_for=AT_ONCE).finding
    assert plan[0]["Plan"]["Shared Hit Blocks"] < 2000  # next to 9,800 with the walk


def test_a_queue_that_was_left_paused_is_named_and_resumed(conn: Connection, queue: Callable[..., str]) -> None:
    run(conn, verbs.publish(queue("orders", paused=True), 1))
    found = check(conn, "waiting_messages", waiting_for=AT_ONCE)
    assert found.severity == "warning"
    assert "of queue orders" in found.finding
    assert "the queue is paused" in found.finding
    fix(conn, found.fix)
    assert run(conn, verbs.lease("orders"))
    assert check(conn, "waiting_messages", waiting_for=AT_ONCE).severity == "ok"


@pytest.mark.parametrize("result", ["failed", "rejected"])
def test_a_group_behind_a_dead_message_is_named_and_continues_after_the_fix(
    conn: Connection, queue: Callable[..., str], result: str
) -> None:
    first, second = run(conn, verbs.publish_batch(queue("orders"), [1, 2], group_keys=["o'clock"] * 2))
    run(conn, verbs.publish_batch(queue("passing", on_dead_head="skip"), [1, 2], group_keys=["a"] * 2))
    run(conn, verbs.publish_batch(queue("alone"), [1], group_keys=["a"]))  # nothing waits behind it
    for queue_name in ("orders", "passing", "alone"):
        (leased,) = run(conn, verbs.lease(queue_name))
        run(conn, verbs.archive(leased.lock_token, [leased.id], result=result, details="no"))
    assert check(conn, "groups").severity == "ok"
    found = check(conn, "groups", waiting_for=AT_ONCE)
    assert found.severity == "warning"
    named = rf"group 'o''clock' of queue orders has waited for 00:00:\d\d behind dead message {first} \({result}\)"
    assert re.fullmatch(rf"{named}; blocked groups: 1", found.finding)
    fix(conn, found.fix)
    (leased,) = run(conn, verbs.lease("orders"))
    assert check(conn, "groups", waiting_for=AT_ONCE).finding == "no group is blocked"
    assert (leased.id == second) == (result == "rejected")
    assert (leased.id > second) == (result == "failed")


def test_a_group_is_not_named_while_somebody_repairs_its_dead_message(
    conn: Connection, queue: Callable[..., str]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2], group_keys=["a"] * 2))
    (leased,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(leased.lock_token, [leased.id], result="failed", details="no"))
    assert run(conn, verbs.lease_dead("orders"))
    assert check(conn, "groups", waiting_for=AT_ONCE).severity == "ok"


def test_a_group_that_waits_though_it_has_a_place_is_named_and_maintenance_lets_it_in(
    conn: Connection, queue: Callable[..., str]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3], group_keys=["a", "a", "b"]))
    assert [leased.body for leased in run(conn, verbs.lease("orders", max_messages=3))] == [1, 3]
    assert check(conn, "groups", waiting_for=AT_ONCE).severity == "ok"
    conn.execute("DELETE FROM messages.message WHERE message = '1'")
    found = check(conn, "groups", waiting_for=AT_ONCE)
    assert found.severity == "warning"
    named = "group 'a' of queue orders has waited for .* although it has a free place; blocked groups: 1"
    assert re.fullmatch(named, found.finding)
    until(lambda: fix(conn, found.fix) or check(conn, "groups", waiting_for=AT_ONCE).severity == "ok")
    assert [leased.body for leased in run(conn, verbs.lease("orders"))] == [2]


@pytest.mark.usefixtures("dsn")
def test_thousands_of_groups_are_checked_without_reading_what_waits_in_them(
    conn: Connection, queue: Callable[..., str]
) -> None:
    for _ in range(5):
        keys = [f"group {number:04}" for number in range(2000)]
        run(conn, verbs.publish_batch(queue("orders"), range(2000), group_keys=keys))
    conn.execute("VACUUM (ANALYZE) messages.message_rows")
    asked = "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM messages.health_groups('1 day')"
    for _ in range(2):  # the first call also reads the catalogs
        ((plan,),) = conn.execute(asked).fetchall()
    assert plan[0]["Plan"]["Shared Hit Blocks"] < 20_000
    assert plan[0]["Plan"]["Actual Total Time"] < 500
