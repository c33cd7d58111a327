"""The data of the measurements: a closed partition of the archive with flights, and flights as Parquet to publish."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.peer import BODY
from benchmarks.server import Connection
from tools.partitions import make_empty_partition

PARTITION: Final = "message_archive_bench"
QUEUES: Final = ("arrivals", "departures", "delays")

# As a consumer leaves them: most succeed, a few fail and were decided about.
_FILL: Final = """
INSERT INTO messages.message_archive (created_at, leased_at, archived_at, attempts, queue_name, result, handled_by,
                                      reference, details, message)
SELECT %(day)s + n * s.step - interval '90 s', %(day)s + n * s.step - interval '200 ms', %(day)s + n * s.step,
       1, (%(queues)s::text[])[1 + n %% 3], CASE n %% 50 WHEN 0 THEN 'failed' WHEN 1 THEN 'rejected' ELSE 'success' END,
       'worker-' || n %% 8, 'flight-' || n, CASE WHEN n %% 50 < 2 THEN 'no arrival report' END,
       %(body)s::jsonb || jsonb_build_object('flight', n %% 6000, 'dep_delay', n %% 97, 'tailnum', md5(n::text))
  FROM generate_series(0, %(rows)s - 1) n,
       (SELECT interval '86399 s' / %(rows)s AS step) s
"""


def fill_archive(conn: Connection, rows: int) -> None:
    """Put so many archived messages into the closed partition, anew, vacuumed."""
    conn.execute("DROP TABLE IF EXISTS messages.message_archive_bench")
    end_at = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    day = end_at - timedelta(days=1)
    make_empty_partition(conn, day, end_at, PARTITION)
    conn.execute(_FILL, {"day": day, "rows": rows, "queues": list(QUEUES), "body": BODY})
    conn.execute("DELETE FROM messages.dead_message")
    conn.execute("VACUUM (ANALYZE) messages.message_archive")
    conn.execute("CHECKPOINT")


def write_flights(spark: SparkSession, path: Path, rows: int) -> None:
    """Write so many bodies as Parquet in 8 files: what a job has that publishes."""
    body = f"replace(replace('{BODY}', '1545', id % 6000), 'N14228', md5(cast(id AS string))) AS message"
    spark.range(0, rows, 1, 8).selectExpr(body).write.mode("overwrite").parquet(str(path))
