"""What went through the queues, recorded by the minute, hour and day: the same numbers, however often they come."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]
LAST_HOUR = "date_trunc('hour', now(), 'UTC') - interval '1 hour'"


@pytest.fixture
def record(conn: Connection) -> Any:
    """Record one bucket of the last hour as the run `nightly`; returns how many rows changed."""
    conn.execute("SELECT messages.begin_run('nightly', 'rollup')")

    def record(**numbers: Any) -> int:
        bucket = conn.execute(f"SELECT {LAST_HOUR}").fetchone()[0].isoformat()
        row = {"grain": "hour", "bucket_at": bucket, "queue_name": "orders", "arrivals": 0, "attempts": 0}
        row |= dict.fromkeys(("success", "failed", "rejected", "lock_expired", "expired", "attempts_max"), 0)
        rows = json.dumps([row | numbers])
        return conn.execute("SELECT messages.record_traffic('nightly', %s::jsonb)", [rows]).fetchone()[0]

    return record


def traffic(conn: Connection) -> Any:
    return conn.execute(
        "SELECT arrivals, success, failed, completions, wait_p50::text FROM messages.traffic"
    ).fetchall()


def test_the_count_with_more_messages_stays_in_whatever_order_they_come(conn: Connection, record: Any) -> None:
    assert record(arrivals=3, success=2, wait_p50=1_500_000) == 1
    assert record(arrivals=3, success=2, wait_p50=1_500_000) == 0
    assert record(arrivals=3, success=2, failed=1, wait_p50=2_000_000) == 1
    assert record(arrivals=2, success=1, wait_p50=1) == 0
    assert traffic(conn) == [(3, 2, 1, 3, "00:00:02")]
    assert record(arrivals=4, success=0, wait_p50=1) == 1
    assert traffic(conn) == [(4, 2, 1, 3, "00:00:02")]


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ({"grain": "week"}, "is not whole, or has not ended"),
        ({"bucket_at": "2026-01-01T10:30:00Z"}, "is not whole, or has not ended"),
        ({"bucket_at": "2999-01-01T10:00:00Z"}, "is not whole, or has not ended"),
        ({"bucket_at": None}, "is not whole, or has not ended"),
        ({"arrivals": -1}, "violates check constraint"),
    ],
)
def test_what_is_no_finished_bucket_is_refused(record: Any, numbers: dict[str, Any], error: str) -> None:
    with pytest.raises(psycopg.Error, match=error):
        record(**numbers)


def test_only_a_run_of_the_rollup_may_record(conn: Connection) -> None:
    conn.execute("SELECT messages.begin_run('other', 'export')")
    for run_id in ("other", "unknown", None):
        with pytest.raises(psycopg.Error, match="there is no run"):
            conn.execute("SELECT messages.record_traffic(%s, '[]')", [run_id])
    conn.execute("SELECT messages.begin_run('mine', 'rollup')")
    with pytest.raises(psycopg.Error, match="not a JSON array"):
        conn.execute("SELECT messages.record_traffic('mine', '{}')")


def test_minutes_and_hours_are_forgotten_and_days_stay(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO messages.traffic (grain, bucket_at, queue_name, run_id)"
        " SELECT grain, date_trunc(grain, now() - age, 'UTC'), 'orders', 'old'"
        " FROM unnest(ARRAY['minute', 'hour', 'day']) grain,"
        " unnest(ARRAY['13 days', '15 days', '399 days', '401 days']::interval[]) age"
    )
    conn.execute("SELECT messages.upkeep()")
    kept = conn.execute("SELECT grain, count(*) FROM messages.traffic GROUP BY grain ORDER BY grain").fetchall()
    assert kept == [("day", 4), ("hour", 3), ("minute", 1)]


def test_what_is_too_old_for_its_grain_is_not_recorded(conn: Connection, record: Any) -> None:
    assert record(grain="minute", bucket_at="2020-01-01T10:30:00Z", success=1) == 0
    assert record(grain="day", bucket_at="2020-01-01T00:00:00Z", success=1) == 1


def windows(conn: Connection, arguments: str = "") -> dict[str, Any]:
    rows = conn.execute(f"SELECT * FROM messages.traffic_windows({arguments})".encode()).fetchall()  # noqa: S608
    return {grain: (first, end) for grain, first, end in rows}


def test_a_window_has_whole_buckets_that_are_over(conn: Connection) -> None:
    found = windows(conn, "now() - interval '90 minutes', margin => '10 minutes'")
    expected = conn.execute(
        "SELECT grain, date_trunc(grain, greatest(now() - interval '90 minutes', begins_at), 'UTC'),"
        " date_trunc(grain, now() - interval '10 minutes', 'UTC')"
        " FROM messages.archive_policy, unnest(ARRAY['minute', 'hour', 'day']) grain"
    ).fetchall()
    assert found == {grain: (first, end) for grain, first, end in expected}


def test_the_next_window_begins_where_the_last_run_could_still_miss_a_late_row(conn: Connection) -> None:
    conn.execute("UPDATE messages.archive_policy SET begins_at = '2020-01-01Z'")
    conn.execute("SELECT messages.begin_run(run, 'rollup') FROM unnest(ARRAY['first', 'part', 'open']) run")
    # Of late: what is older than the longest retention is not counted again.
    (day,) = conn.execute("SELECT date_trunc('day', now(), 'UTC') - interval '2 days'").fetchone()
    conn.execute(
        "SELECT messages.finish_run('part', '{}'), messages.finish_run('first', jsonb_build_object('up_to', %s))",
        [day + timedelta(hours=9, minutes=40)],
    )
    began = day + timedelta(hours=10, minutes=20, seconds=30)
    conn.execute("UPDATE messages.pipeline_run SET started_at = %s WHERE run_id = 'first'", [began])
    for settle, first_at in (("1 hour", "09:00"), ("30 minutes", "09:00"), ("3 hours", "07:00")):
        hours, days = (windows(conn, f"settle => '{settle}'")[grain][0] for grain in ("hour", "day"))
        assert (hours, days) == (day + timedelta(hours=int(first_at[:2])), day)


def test_a_window_that_is_empty_or_older_than_the_archive_is_refused(conn: Connection) -> None:
    with pytest.raises(psycopg.Error, match="is empty"):
        windows(conn, "now(), now()")
    with pytest.raises(psycopg.Error, match="the archive begins at"):
        windows(conn, "'2000-01-01', '2000-02-01'")


def test_observers_see_the_traffic_of_their_queues_only(conn: Connection, record: Any) -> None:
    for name in ("orders", "bills"):
        conn.execute("SELECT messages.create_queue(%s)", [name])
        record(queue_name=name, arrivals=1)
    conn.execute("CREATE ROLE traffic_watcher LOGIN")
    try:
        conn.execute("GRANT messages_observer TO traffic_watcher")
        conn.execute("SELECT messages.grant_queue('orders', 'traffic_watcher', 'observe')")
        with psycopg.connect(conn.info.dsn, user="traffic_watcher", autocommit=True) as watcher:
            seen = watcher.execute("SELECT queue_name FROM messages.traffic_report()").fetchall()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watcher.execute("SELECT messages.traffic_report('bills')")
    finally:
        conn.execute("DROP OWNED BY traffic_watcher; DROP ROLE traffic_watcher")
    assert seen == [("orders",)]
    assert conn.execute("SELECT count(*) FROM messages.traffic_report(grain => 'day')").fetchone() == (0,)
    with pytest.raises(psycopg.Error, match="grain is 'week'"):
        conn.execute("SELECT messages.traffic_report(grain => 'week')")
