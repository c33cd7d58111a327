"""What uninstalling in one database leaves to maintenance of another one of the same cluster."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrations, run, verbs
from airflow_provider_pgqueue.core.errors import CronUnavailable
from airflow_provider_pgqueue.core.installation import CRON_ROLE

Connection = psycopg.Connection[Any]
JOBS = "SELECT jobname, database, username FROM cron.job ORDER BY jobname"
pytestmark = pytest.mark.cron


def schedule_from(cron_session: Connection, conn: Connection) -> list[tuple[Any, ...]]:
    """Let pg_cron, which lives elsewhere, run maintenance for this database, as the refusal says; return all jobs."""
    with pytest.raises(CronUnavailable) as refused:
        run(conn, verbs.install_cron(CRON_ROLE))
    statement = (refused.value.fix or "").partition("SELECT ")[2].partition("; or let Airflow")[0]
    cron_session.execute(f"SELECT {statement}".encode())
    return cron_session.execute(JOBS).fetchall()


def test_the_jobs_of_two_databases_live_side_by_side_and_go_one_by_one(
    cron_session: Connection, conn: Connection
) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    other = conn.info.dbname
    jobs = schedule_from(cron_session, conn)
    assert [(database, username) for _, database, username in jobs].count((other, CRON_ROLE)) == 1
    assert len(jobs) == 2
    assert run(cron_session, verbs.maintenance_mode()) == "pg_cron"
    assert run(cron_session, verbs.uninstall_cron()) == 1
    assert run(cron_session, verbs.maintenance_mode()) == "airflow"
    migrations.uninstall(cron_session)
    assert {database for _, database, _ in cron_session.execute(JOBS).fetchall()} == {other}
    assert conn.execute("SELECT pg_has_role(%s, 'messages_maintenance', 'USAGE')", [CRON_ROLE]).fetchone() == (True,)


def test_uninstalling_elsewhere_keeps_the_login_of_maintenance(cron_session: Connection, conn: Connection) -> None:
    run(cron_session, verbs.install_cron(CRON_ROLE))
    before = cron_session.execute(JOBS).fetchall()
    migrations.uninstall(conn)
    assert cron_session.execute(JOBS).fetchall() == before
    cron_session.execute(f"SET ROLE {CRON_ROLE}".encode())
    assert "archived" in run(cron_session, verbs.maintain())
    cron_session.execute("RESET ROLE")


def test_a_schema_that_somebody_called_cron_is_not_taken_for_pg_cron(conn: Connection) -> None:
    conn.execute("CREATE SCHEMA cron; CREATE TABLE cron.job (jobid bigint, jobname text, username text, database text)")
    conn.execute("INSERT INTO cron.job VALUES (1, 'messages:maintenance', 'postgres', current_database())")
    conn.execute("CREATE FUNCTION cron.unschedule(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT 1/0 = 1'")
    assert run(conn, verbs.uninstall_cron()) == 0
    migrations.uninstall(conn)
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)
