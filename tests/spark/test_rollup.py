"""The traffic of the queues by minute, hour and day: the numbers of plain SQL, however often and in whatever pieces."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.core.errors import BeforeArchive
from airflow_provider_pgqueue.spark import rollup

Connection = psycopg.Connection[Any]
Rollup = Callable[..., dict[str, Any]]

NUMBERS = """grain, bucket_at, queue_name, arrivals, success, failed, rejected, lock_expired, expired, attempts,
    attempts_max, wait_p50, wait_p95, wait_p99, wait_max, run_p50, run_p95, run_p99, run_max, dead_causes"""
# The same in plain SQL.
EXPECTED = f"""
WITH grain (grain) AS (VALUES ('minute'), ('hour'), ('day')),
arrived AS (
    SELECT grain, date_trunc(grain, created_at, 'UTC') AS bucket_at, queue_name, count(*) AS arrivals
      FROM grain, (SELECT created_at, queue_name FROM messages.message
                   UNION ALL SELECT created_at, queue_name FROM messages.message_archive) m GROUP BY 1, 2, 3),
timed AS (
    SELECT a.*, CASE WHEN leased_at IS NOT NULL THEN greatest(leased_at - created_at, '0') END AS wait,
           CASE WHEN leased_at IS NOT NULL AND result IN ('success', 'failed', 'rejected')
                THEN greatest(archived_at - leased_at, '0') END AS run
      FROM messages.message_archive a),
finished AS (
    SELECT grain, date_trunc(grain, archived_at, 'UTC') AS bucket_at, queue_name,
           {
    ", ".join(
        f"count(*) FILTER (WHERE result = '{result}') AS {result}"
        for result in ("success", "failed", "rejected", "lock_expired", "expired")
    )
},
           sum(attempts) AS attempts, max(attempts) AS attempts_max,
           {
    ", ".join(
        f"percentile_disc(0.{at}) WITHIN GROUP (ORDER BY {time}) AS {time}_p{at}"
        for time in ("wait", "run")
        for at in (50, 95, 99)
    )
},
           max(wait) AS wait_max, max(run) AS run_max
      FROM grain, timed GROUP BY 1, 2, 3),
cause AS (
    SELECT grain, date_trunc(grain, archived_at, 'UTC') AS bucket_at, queue_name, result, fingerprint,
           count(*) AS messages,
           row_number() OVER (PARTITION BY grain, date_trunc(grain, archived_at, 'UTC'), queue_name
                              ORDER BY count(*) DESC, result COLLATE "C", fingerprint COLLATE "C") AS place
      FROM grain, messages.message_archive WHERE result <> 'success' GROUP BY 1, 2, 3, 4, 5),
dead AS (
    SELECT grain, bucket_at, queue_name, jsonb_agg(jsonb_build_object(
               'result', result, 'fingerprint', fingerprint, 'messages', messages) ORDER BY place) AS dead_causes
      FROM cause WHERE place <= 10 GROUP BY 1, 2, 3),
traffic AS (
    SELECT grain, bucket_at, queue_name, coalesce(arrivals, 0) AS arrivals, coalesce(success, 0) AS success,
           coalesce(failed, 0) AS failed, coalesce(rejected, 0) AS rejected, coalesce(lock_expired, 0) AS lock_expired,
           coalesce(expired, 0) AS expired, coalesce(attempts, 0) AS attempts,
           coalesce(attempts_max, 0) AS attempts_max, wait_p50, wait_p95, wait_p99, wait_max,
           run_p50, run_p95, run_p99, run_max, coalesce(dead_causes, '[]') AS dead_causes
      FROM arrived FULL JOIN finished USING (grain, bucket_at, queue_name)
      LEFT JOIN dead USING (grain, bucket_at, queue_name))
SELECT {NUMBERS} FROM traffic
 WHERE bucket_at >= %(first_at)s AND bucket_at + ('1 ' || grain)::interval <= %(end_at)s ORDER BY 1, 2, 3
"""  # noqa: S608


@pytest.fixture(autouse=True)
def old_archive(conn: Connection) -> None:
    """Let the archive begin long ago, on the first of a month too."""
    conn.execute("ALTER TABLE messages.message_archive_default DROP CONSTRAINT archived_before_the_archive_begins")
    conn.execute("UPDATE messages.archive_policy SET begins_at = '2020-01-01Z'")


@pytest.fixture
def count(spark: SparkSession, dsn: str) -> Rollup:
    """Run the roll-up: `count("run", since=…)`."""
    return lambda run_id, **options: rollup(spark, run_id=run_id, dsn=dsn, **options)


def fill(conn: Connection, messages: int = 600) -> datetime:
    """Put messages of the last three days but for some minutes there, at random; the midnight before them.

    So there are two whole days of them at any hour.
    """
    for name in ("orders", "bills"):
        conn.execute("SELECT messages.create_queue(%s)", [name])
    conn.execute("SELECT setseed(0.42)")
    conn.execute(
        """
        INSERT INTO messages.message_archive (queue_name, result, created_at, leased_at, archived_at, attempts,
                                              fingerprint, message)
        SELECT queue_name, result, created_at, leased_at,
               least(coalesce(leased_at + random() * interval '20 seconds', created_at + interval '1 hour'),
                     now() - interval '9 minutes'), attempts,
               CASE WHEN result <> 'success' THEN 'cause' || (random() * 14)::integer END, '1'
          FROM (SELECT (ARRAY['orders', 'bills'])[1 + (random() * 1.2)::integer %% 2] AS queue_name,
                       (ARRAY['success', 'success', 'success', 'failed', 'rejected', 'lock_expired', 'expired'])
                           [1 + n %% 7] AS result, created_at,
                       CASE WHEN n %% 13 > 0 THEN created_at + (random() ^ 4) * interval '2 hours' - interval '1 s' END
                           AS leased_at,
                       (1 + random() * 4)::integer AS attempts
                  FROM (SELECT n, now() - interval '9 minutes' - interval '3 days' * sqrt(random()) AS created_at
                          FROM generate_series(1, %s) n) dated) drawn
        """,
        [messages],
    )
    conn.execute(
        "INSERT INTO messages.message (queue_name, created_at, message)"
        " SELECT 'orders', now() - interval '9 minutes' - interval '1 day' * random(), '1' FROM generate_series(1, 50)"
    )
    # Half a dozen in one minute, so that a minute has percentiles too.
    conn.execute(
        "UPDATE messages.message_archive SET archived_at = now() - interval '90 minutes' WHERE random() < 0.05"
    )
    midnight: datetime = conn.execute(
        "SELECT date_trunc('day', now() - interval '3 days 9 minutes', 'UTC')"
    ).fetchone()[0]
    return midnight


def traffic(conn: Connection) -> list[Any]:
    return conn.execute(f"SELECT {NUMBERS} FROM messages.traffic ORDER BY 1, 2, 3").fetchall()  # noqa: S608


def expected(conn: Connection, first_at: datetime, end_at: datetime) -> list[Any]:
    return conn.execute(EXPECTED.encode(), {"first_at": first_at, "end_at": end_at}).fetchall()


def test_the_numbers_are_those_of_plain_sql_in_pieces_and_again(conn: Connection, count: Rollup) -> None:
    midnight = fill(conn)
    now = conn.execute("SELECT now()").fetchone()[0]
    done = count("first", since=midnight, margin=timedelta(0))
    assert done["buckets"] == done["changed"] > 100
    whole = traffic(conn)
    assert whole == expected(conn, midnight, now)
    assert max(len(row[-1]) for row in whole) == 10

    again = [
        count("first", since=midnight),
        count("half", since=midnight + timedelta(hours=40, minutes=17), until=now - timedelta(minutes=3)),
        count("since"),
    ]
    assert [summary["changed"] for summary in again[1:]] == [0, 0]
    assert again[0] == done
    assert traffic(conn) == whole


def test_a_bucket_that_has_not_ended_is_left_out(conn: Connection, count: Rollup) -> None:
    midnight = fill(conn, 200)
    end_at = midnight + timedelta(days=2, hours=7, minutes=30, seconds=20)
    count("part", since=midnight, until=end_at)
    rows = traffic(conn)
    assert rows == expected(conn, midnight, end_at)
    steps = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
    ends = {grain: max(row[1] for row in rows if row[0] == grain) + step for grain, step in steps.items()}
    assert ends["hour"] <= end_at.replace(minute=0, second=0)
    assert ends["day"] == midnight + timedelta(days=2)


def test_what_commits_after_its_bucket_was_counted_is_counted_by_the_next_run(
    conn: Connection, connect: Callable[..., Connection], count: Rollup
) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    conn.execute("UPDATE messages.archive_policy SET begins_at = now() - interval '2 days'")
    archive = (
        "INSERT INTO messages.message_archive (queue_name, result, created_at, leased_at, archived_at, message)"
        " SELECT 'orders', 'success', past, past, past, '1' FROM (SELECT now() - interval '10 minutes') AS at (past)"
    )
    late = connect(autocommit=False)
    late.execute(archive)
    conn.execute(archive)
    assert count("early")["buckets"] > 0
    completions = "SELECT sum(completions), sum(arrivals) FROM messages.traffic WHERE grain = 'minute'"
    assert conn.execute(completions).fetchone() == (1, 1)
    late.commit()
    assert count("next")["changed"] > 0
    assert conn.execute(completions).fetchone() == (2, 2)


def test_what_retention_removed_is_not_forgotten_by_a_count_of_the_same_time(conn: Connection, count: Rollup) -> None:
    midnight = fill(conn, 200)
    count("before", since=midnight)
    before = traffic(conn)
    conn.execute("DELETE FROM messages.message_archive WHERE id % 2 = 0; DELETE FROM messages.message WHERE id % 2 = 0")
    assert count("after", since=midnight)["changed"] == 0
    assert traffic(conn) == before


def test_an_empty_archive_gives_no_buckets_and_a_time_that_is_none_an_error(conn: Connection, count: Rollup) -> None:
    assert count("empty")["buckets"] == 0
    moment = datetime.fromisoformat("2026-01-02T00:00:00+00:00")
    with pytest.raises(InvalidArgument, match="an end after the beginning"):
        count("backwards", since=moment, until=moment)
    with pytest.raises(BeforeArchive):
        count("before", until=moment.replace(year=2019))
    with pytest.raises(InvalidArgument, match="settle is"):
        count("ages", settle=timedelta(days=99))


def test_the_time_zone_of_the_session_changes_no_number(conn: Connection, count: Rollup, spark: SparkSession) -> None:
    midnight = fill(conn, 100)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        count("kathmandu", since=midnight, margin=timedelta(0))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert traffic(conn) == expected(conn, midnight, conn.execute("SELECT now()").fetchone()[0])
