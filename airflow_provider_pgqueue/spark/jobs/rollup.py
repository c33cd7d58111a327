"""Counts what went through the queues by the minute, hour and day: arrivals, results, waiting and running times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import islice
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.spark.jobs.job import Job, Summary
from airflow_provider_pgqueue.spark.source.options import RESULTS

_Windows = Mapping[str, tuple[datetime, datetime]]

_SECONDS: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
_HANDLED: Final = ("success", "failed", "rejected")  # the others ended with nobody at work
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_KEY: Final = ("grain", "bucket_at", "queue_name")
_COLUMNS: Final = "id,queue_name,result,created_at,leased_at,archived_at,attempts,fingerprint"
_CAUSES: Final = 10
_CHUNK: Final = 1_000  # buckets in one statement


def rollup(
    spark: SparkSession,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    margin: timedelta = timedelta(minutes=1),
    settle: timedelta = timedelta(hours=1),
) -> Summary:
    """Count arrivals, results and times by minute, hour and day, into messages.traffic.

    Without a time a run goes on where the last one ended, and counts the youngest buckets again: a row is archived
    before its transaction commits, so they may grow. Percentiles are exact, by nearest rank. Buckets are whole: a time
    that begins in the middle of one begins with it, and one that has not ended is left to the next run.

    Runs over the same time, one after the other or at once, give the same numbers: of two counts of one bucket the one
    with more messages stays, so that rows which retention has removed are not missed.

    :param since: Count from here on, such as 2026-01-31T08:00Z. Default: where the last run ended.
    :param until: Count up to here. Default: now, less the margin.
    :param margin: Leave what is younger than this to the next run.
    :param settle: Count again what was younger than this when the last run began.
    :raises InvalidArgument: for an empty time.
    :raises BeforeArchive: for one that the archive does not keep.
    """
    job = Job.of(spark, "rollup", run_id, dsn, parallelism, since=since, until=until)

    def work() -> Summary:
        found = job.ask(verbs.traffic_windows(first_at=since, end_at=until, margin=margin, settle=settle))
        windows = {grain: (first, end) for grain, (first, end) in found.items() if first < end}
        buckets, changed = _count(job, windows) if windows else (0, 0)
        summary: Summary = {
            "buckets": buckets,
            "changed": changed,
            "windows": {grain: [at.astimezone(UTC).isoformat() for at in window] for grain, window in windows.items()},
        }
        if since is None and until is None and "minute" in windows:
            summary["up_to"] = windows["minute"][1].isoformat()
        return summary

    return job.once(work)


def _count(job: Job, windows: _Windows) -> tuple[int, int]:
    since = min(first for first, _ in windows.values())
    # The queue before the archive: what moves from one to the other in between is seen twice, not never.
    waiting = job.read("queue", "id,queue_name,created_at", since=since).localCheckpoint()
    archive = job.read("archive", _COLUMNS, since=since).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.watching():
            return _record(job, _traffic(waiting, archive, windows))
    finally:
        archive.unpersist()
        waiting.unpersist()


def _traffic(waiting: DataFrame, archive: DataFrame, windows: _Windows) -> DataFrame:
    """Return one row for each bucket with anything in it."""
    waiting = waiting.join(archive.select("id"), "id", "left_anti")
    published = waiting.select("queue_name", "created_at").unionAll(archive.select("queue_name", "created_at"))
    arrivals = _in_buckets(published, "created_at", windows).groupBy(*_KEY).agg(F.count("*").alias("arrivals"))
    finished = _in_buckets(_timed(archive), "archived_at", windows)
    parts = (_results(finished), _percentiles(finished, "wait"), _percentiles(finished, "run"), _causes(finished))
    traffic = reduce(lambda left, right: left.join(right, list(_KEY), "full_outer"), parts, arrivals)
    return traffic.fillna(0, ["arrivals", *RESULTS, "attempts", "attempts_max"])


def _in_buckets(rows: DataFrame, column: str, windows: _Windows) -> DataFrame:
    """Return each row once for each grain, where its bucket is in the window."""
    at = F.unix_micros(column)

    def of(grain: str, first: datetime, end: datetime) -> Column:
        bucket = F.timestamp_micros(at - F.pmod(at, F.lit(_SECONDS[grain] * 1_000_000)))
        inside = (F.col(column) >= F.lit(first)) & (F.col(column) < F.lit(end))
        return F.when(inside, F.struct(F.lit(grain).alias("grain"), bucket.alias("bucket_at")))

    # Not a union of all grains, of which each would read the rows by itself.
    buckets = F.array(*(of(grain, first, end) for grain, (first, end) in windows.items()))
    return rows.select("*", F.inline(F.array_compact(buckets)))


def _timed(archive: DataFrame) -> DataFrame:
    """Add how long each message waited and ran, in microseconds; clocks that were set back make no negative time."""

    def between(start: str, end: str) -> Column:
        return F.greatest(F.unix_micros(end) - F.unix_micros(start), F.lit(0).cast("bigint"))

    # greatest() leaves NULL out, so a message that was never leased needs a condition.
    leased = F.col("leased_at").isNotNull()
    return archive.withColumns(
        {
            "wait": F.when(leased, between("created_at", "leased_at")),
            "run": F.when(leased & F.col("result").isin(*_HANDLED), between("leased_at", "archived_at")),
        }
    )


def _results(finished: DataFrame) -> DataFrame:
    counts = [F.count_if(F.col("result") == result).alias(result) for result in RESULTS]
    attempts = F.sum("attempts").alias("attempts"), F.max("attempts").alias("attempts_max")
    return finished.groupBy(*_KEY).agg(*counts, *attempts)


def _percentiles(finished: DataFrame, measure: str) -> DataFrame:
    """Return the nearest ranks and the largest value of each bucket: exact, and sorted on disk where memory ends."""
    rank = F.cume_dist().over(Window.partitionBy(*_KEY).orderBy(measure))
    ranked = finished.where(F.col(measure).isNotNull()).select(*_KEY, measure, rank.alias("rank"))
    marks = [
        F.min(F.when(F.col("rank") >= at, F.col(measure))).alias(f"{measure}_{p}") for p, at in _PERCENTILES.items()
    ]
    return ranked.groupBy(*_KEY).agg(*marks, F.max(measure).alias(f"{measure}_max"))


def _causes(finished: DataFrame) -> DataFrame:
    """Return the most frequent causes of death of each bucket, in one order."""
    dead = finished.where(F.col("result") != "success").groupBy(*_KEY, "result", "fingerprint")
    counted = dead.agg(F.count("*").alias("messages"))
    cause = F.struct("result", "fingerprint", "messages")
    most_first = F.struct((-F.col("messages")).alias("messages"), "result", "fingerprint")
    return counted.groupBy(*_KEY).agg(F.min_by(cause, most_first, _CAUSES).alias("dead_causes"))


def _record(job: Job, traffic: DataFrame) -> tuple[int, int]:
    """Upsert the buckets in chunks; how many there were and how many changed."""
    rows = (
        row.json
        for row in traffic.select(F.to_json(F.struct("*"), {"timeZone": "UTC"}).alias("json")).toLocalIterator()
    )
    buckets = changed = 0
    with job.connect() as conn:
        while chunk := list(islice(rows, _CHUNK)):
            changed += run(conn, verbs.record_traffic(job.run_id, f"[{','.join(chunk)}]"))
            buckets += len(chunk)
    return buckets, changed
