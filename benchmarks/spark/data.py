"""What is measured on: a closed partition of the archive with flights, and flights as Parquet to be published."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.peer import BODY
from benchmarks.server import Connection

PARTITION: Final = "message_archive_bench"
QUEUES: Final = ("arrivals", "departures", "delays")

_MAKE_PARTITION: Final = """
ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins;
DO $$ DECLARE
    first_at timestamptz := date_trunc('month', now(), 'UTC') - interval '1 day';
BEGIN
    EXECUTE format('CREATE TABLE messages.message_archive_bench PARTITION OF messages.message_archive
                    FOR VALUES FROM (%L) TO (%L)', first_at, first_at + interval '1 day');
    ALTER TABLE messages.message_archive_bench OWNER TO messages_owner;
    UPDATE messages.archive_policy SET begins_at = least(begins_at, first_at);
END $$
"""
# As a consumer leaves them: most succeed, a few fail and were decided about.
_FILL: Final = """
INSERT INTO messages.message_archive (created_at, leased_at, archived_at, attempts, queue_name, result, handled_by,
                                      reference, details, message)
SELECT day.at + n * day.step - interval '90 s', day.at + n * day.step - interval '200 ms', day.at + n * day.step,
       1, (%(queues)s::text[])[1 + n %% 3], CASE n %% 50 WHEN 0 THEN 'failed' WHEN 1 THEN 'rejected' ELSE 'success' END,
       'worker-' || n %% 8, 'flight-' || n, CASE WHEN n %% 50 < 2 THEN 'no arrival report' END,
       %(body)s::jsonb || jsonb_build_object('flight', n %% 6000, 'dep_delay', n %% 97, 'tailnum', md5(n::text))
  FROM generate_series(0, %(rows)s - 1) n,
       LATERAL (SELECT date_trunc('month', now(), 'UTC') - interval '1 day' AS at,
                       interval '86399 s' / %(rows)s AS step) day
"""


def fill_archive(conn: Connection, rows: int) -> None:
    """Put so many archived messages into the closed partition, anew, vacuumed."""
    conn.execute("DROP TABLE IF EXISTS messages.message_archive_bench")
    conn.execute(_MAKE_PARTITION)
    conn.execute(_FILL, {"rows": rows, "queues": list(QUEUES), "body": BODY})
    conn.execute("DELETE FROM messages.dead_message")
    conn.execute("VACUUM (ANALYZE) messages.message_archive")
    conn.execute("CHECKPOINT")


def write_flights(spark: SparkSession, path: Path, rows: int) -> None:
    """Write so many bodies as Parquet in 8 files: what a job has that publishes."""
    body = f"replace(replace('{BODY}', '1545', id % 6000), 'N14228', md5(cast(id AS string))) AS message"
    spark.range(0, rows, 1, 8).selectExpr(body).write.mode("overwrite").parquet(str(path))
