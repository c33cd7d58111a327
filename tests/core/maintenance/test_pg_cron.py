"""What pg_cron does when a minute begins: each of these tests waits for one."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, run, verbs
from airflow_provider_pgqueue.core.installation import CRON_ROLE, install
from tests.core.maintenance.test_health import check, fix
from tests.waiting import PATIENCE, until, until_waiting
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
pytestmark = [pytest.mark.cron, pytest.mark.long]


def test_pg_cron_publishes_as_a_login_that_may(cron_session: Connection, cron_dsn: str) -> None:
    cron_session.execute("CREATE EXTENSION IF NOT EXISTS pg_cron; CREATE ROLE shop LOGIN IN ROLE messages_publisher")
    try:
        cron_session.execute("GRANT USAGE ON SCHEMA cron TO shop; LISTEN new_message")
        with psycopg.connect(cron_dsn, user="shop", autocommit=True) as shop:
            shop.execute("SELECT cron.schedule('minutely', '* * * * *', $$SELECT messages.publish('default', '7')$$)")
        (notified,) = cron_session.notifies(timeout=75, stop_after=1)
        assert cron_session.execute("SELECT id::text, message FROM messages.message").fetchall() == [
            (notified.payload, 7)
        ]
        assert check(cron_session, "cron_jobs").severity != "critical"
    finally:
        cron_session.execute("SELECT cron.unschedule(jobid) FROM cron.job WHERE username = 'shop'")
        cron_session.execute("DROP OWNED BY shop; DROP ROLE shop")


def test_a_job_that_fails_is_critical_with_what_postgresql_said(cron_session: Connection) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    broken = "SELECT cron.alter_job(jobid, command => 'SELECT messages.maintain(), 1/0') FROM cron.job"
    cron_session.execute(f"{broken} WHERE jobname = 'messages:maintenance'".encode())
    # pg_cron may miss the first minute.
    failed = "SELECT FROM cron.job_run_details WHERE status = 'failed'"
    until(lambda: cron_session.execute(failed).rowcount, timeout=180, what="a minute of pg_cron")
    found = check(cron_session, "cron_jobs")
    assert found.severity == "critical"
    assert re.search(r"last run of pg_cron job \d+ \(maintenance\) failed: ERROR: +division by zero", found.finding)
    fix(cron_session, found.fix)
    assert check(cron_session, "cron_jobs").severity == "ok"


def test_an_installation_holds_nothing_that_a_maintenance_run_needs_while_it_waits_for_one(
    cron_session: Connection, cron_dsn: str
) -> None:
    install(cron_session)
    with (
        psycopg.connect(cron_dsn, application_name="maintenance") as maintenance,
        psycopg.connect(cron_dsn, autocommit=True) as installing,
        ThreadPoolExecutor(1) as pool,
    ):
        # So begins a maintenance run.
        maintenance.execute("SELECT FROM messages.maintenance_run FOR NO KEY UPDATE")
        installed = pool.submit(install, installing)
        until_waiting(cron_session)
        maintenance.execute("SET LOCAL lock_timeout = '1s'; SELECT messages.maintain()")
        maintenance.commit()
        assert installed.result(timeout=PATIENCE)["maintenance_mode"] == "pg_cron"


def test_a_member_of_the_owner_who_replaces_maintenance_gets_no_superuser(cron_session: Connection) -> None:
    install(cron_session)
    assert run(cron_session, verbs.maintenance_mode()) == "pg_cron"
    cron_session.execute("SET ROLE messages_owner")
    cron_session.execute(
        "CREATE TABLE messages.proof AS SELECT current_user AS who, false AS super LIMIT 0;"
        " GRANT INSERT ON messages.proof TO PUBLIC;"
        "CREATE OR REPLACE FUNCTION messages.maintain(with_queues boolean DEFAULT true) RETURNS jsonb"
        " LANGUAGE sql AS $$"
        " INSERT INTO messages.proof SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user;"
        " SELECT '{}'::jsonb $$"
    )
    cron_session.execute("RESET ROLE")
    until(lambda: cron_session.execute("SELECT FROM messages.proof").rowcount, timeout=180, what="a minute of pg_cron")
    assert cron_session.execute("SELECT DISTINCT who, super FROM messages.proof").fetchall() == [(CRON_ROLE, False)]


@pytest.fixture
def of_its_own(another_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of this test alone, whose pg_cron runs jobs in background workers."""
    cluster = another_cluster("launcher", cron_database="shop")
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET cron.use_background_workers = on")
    with psycopg.connect(cluster.create_database("shop"), autocommit=True) as conn:
        migrate(conn)
    cluster.restart()
    return cluster


def test_a_launcher_that_died_is_critical_and_airflow_runs_maintenance_until_the_server_restarts(
    of_its_own: Cluster,
) -> None:
    launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_cron launcher'"
    with psycopg.connect(of_its_own.dsn("shop"), autocommit=True, application_name="by hand") as conn:
        run(conn, verbs.install_cron(CRON_ROLE))
        (pid,) = until(lambda: conn.execute(launcher).fetchone())
        conn.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        assert run(conn, verbs.maintenance_mode()) == "pg_cron"
        conn.execute("UPDATE messages.maintenance_run SET cron_at = cron_at - interval '2 minutes'")
        dead = check(conn, "cron_jobs")
        assert dead.severity == "critical"
        assert re.fullmatch(
            r"pg_cron job \d+ did no maintenance for 00:02:0\d: the launcher of pg_cron does not run", dead.finding
        )
        fix(conn, dead.fix)
        assert check(conn, "maintenance_lag").severity == "ok"
        # What the one cannot, the other does at once, and the check keeps saying so.
        assert check(conn, "cron_jobs").severity == "critical"
        conn.execute("UPDATE messages.maintenance_run SET cron_at = cron_at - interval '2 minutes'")
        assert run(conn, verbs.maintenance_mode()) == "airflow"
    of_its_own.restart()
    with psycopg.connect(of_its_own.dsn("shop"), autocommit=True, application_name="by hand") as conn:
        until(lambda: run(conn, verbs.maintenance_mode()) == "pg_cron", timeout=180, what="a minute of pg_cron")
        assert conn.execute("SELECT done_by, cron_role FROM messages.maintenance_run").fetchone() == (
            "pg_cron",
            CRON_ROLE,
        )
        assert check(conn, "cron_jobs").severity == "ok"
