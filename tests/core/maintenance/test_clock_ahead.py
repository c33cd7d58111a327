"""The clock of the server was ahead and is right again: what was stored meanwhile stops nothing and hides nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.archive.test_archive import age
from tests.core.maintenance.test_health import check

Connection = psycopg.Connection[Any]


def test_retention_is_applied_again_at_once(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders", retention=timedelta(days=30)))
    run(conn, verbs.maintain())
    age(conn, 60, "orders")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT FROM messages.message_archive").rowcount == 1, "it was applied less than an hour ago"
    conn.execute("UPDATE messages.archive_policy SET retention_applied_at = now() + interval '8 hours'")
    assert run(conn, verbs.maintain())["partitions_dropped"] == 1


def test_health_does_not_take_a_maintenance_run_that_lies_ahead_for_one(conn: Connection) -> None:
    run(conn, verbs.maintain())
    assert check(conn, "maintenance_lag").severity == "ok"
    conn.execute("UPDATE messages.maintenance_run SET finished_at = now() + interval '8 hours'")
    found = check(conn, "maintenance_lag")
    assert (found.severity, "lies ahead" in found.finding) == ("critical", True)
    assert run(conn, verbs.status("default"))[0].maintenance_age is None
    conn.execute((found.fix or "").encode())
    assert check(conn, "maintenance_lag").severity == "ok"


def test_health_does_not_take_a_retention_that_lies_ahead_for_one(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders", retention=timedelta(days=30)))
    conn.execute("UPDATE messages.queue SET created_at = now() - interval '9 days'")
    conn.execute("UPDATE messages.archive_policy SET retention_applied_at = now() + interval '8 hours'")
    found = check(conn, "retention")
    assert (found.severity, "retention was last applied 9 days" in found.finding) == ("warning", True)


def test_pg_cron_does_not_run_maintenance_for_as_long_as_the_clock_was_ahead(conn: Connection) -> None:
    run(conn, verbs.maintain())
    conn.execute("UPDATE messages.maintenance_run SET cron_at = now(), cron_role = 'postgres'")
    assert run(conn, verbs.maintenance_mode()) == "pg_cron"
    conn.execute("UPDATE messages.maintenance_run SET cron_at = now() + interval '8 hours'")
    assert run(conn, verbs.maintenance_mode()) == "airflow"


def test_a_failure_of_maintenance_is_over_with_the_next_maintenance_run(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO messages.maintenance_failure (step, subject, sqlstate, error, failed_at)"
        " VALUES ('scan_next', 'gone', '42P01', 'no table', now() + interval '8 hours')"
    )
    run(conn, verbs.maintain())
    assert check(conn, "maintenance_steps").severity == "ok"


@pytest.mark.parametrize("grain", ["minute", "hour", "day"])
def test_the_history_has_nothing_that_lies_ahead(conn: Connection, grain: str) -> None:
    conn.execute(
        "INSERT INTO messages.history (queue_name, grain, bucket_at, depth)"
        " VALUES ('default', %s, date_trunc(%s, now() + interval '2 days', 'UTC'), 7)",
        [grain, grain],
    )
    run(conn, verbs.maintain())
    assert conn.execute("SELECT FROM messages.history WHERE bucket_at > now()").rowcount == 0


def test_what_was_archived_ahead_is_counted_now(conn: Connection) -> None:
    run(conn, verbs.maintain())
    conn.execute(
        "INSERT INTO messages.message_archive (id, created_at, archived_at, queue_name, result, message)"
        " VALUES (nextval('messages.message_id_seq'), now(), now() + interval '1 hour', 'default', 'success', '1')"
    )
    for _ in range(2):
        conn.execute("UPDATE messages.history_progress SET next_at = next_at - interval '2 minutes'")
        run(conn, verbs.maintain())
    (counted,) = conn.execute("SELECT sum(success) FROM messages.history WHERE grain = 'minute'").fetchall()
    assert counted == (1,)
    assert conn.execute("SELECT FROM messages.history WHERE bucket_at > now()").rowcount == 0
