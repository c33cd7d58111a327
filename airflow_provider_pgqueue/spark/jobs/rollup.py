"""Counts what went through the queues by the minute, hour and day: arrivals, results, waiting and running times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import islice
from typing import Any, Final

import click
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.moment import moment
from airflow_provider_pgqueue.spark.jobs.run import Progress, Summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching_tasks

Windows = Mapping[str, tuple[datetime, datetime]]

_SECONDS: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
_RESULTS: Final = ("success", "failed", "rejected", "lock_expired", "expired")
_HANDLED: Final = ("success", "failed", "rejected")  # the others ended with nobody at work
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_KEY: Final = ("grain", "bucket_at", "queue_name")
_CAUSES: Final = 10
_CHUNK: Final = 1_000  # buckets in one statement


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupOptions:
    """What to count.

    Without `first_at` and `end_at` a run goes on where the last one ended, up to `margin` before now, and counts again
    what ended less than `settle` before the last one began: a row is archived before its transaction commits, so the
    last buckets may grow. What commits later than `settle` is counted by a run with `first_at`. Buckets are whole:
    a window that begins in the middle of one begins with it, and one that has not ended is left for the next run.
    """

    run_id: str
    first_at: datetime | None = None
    end_at: datetime | None = None
    margin: timedelta = timedelta(minutes=1)
    settle: timedelta = timedelta(hours=1)


def rollup(spark: SparkSession, options: RollupOptions, database: Database) -> Summary:
    """Count into `messages.traffic`; how many buckets there were and how many of them were new or grew.

    Percentiles are exact, by nearest rank. Again over the same time, or two at once, give the same numbers: of two
    counts of one bucket the one with more messages stays, so that rows which retention has removed are not missed.
    A run that dies is done again. InvalidArgument for an empty time, BeforeArchive for one that is not kept.
    """
    with run(database, options.run_id, "rollup") as this:
        if this.summary is not None:
            return this.summary
        windows = _windows(database, options)
        buckets, changed = _count(spark, windows, database, options.run_id) if windows else (0, 0)
        summary: Summary = {"buckets": buckets, "changed": changed, "windows": _as_texts(windows)}
        if options.first_at is None and options.end_at is None and "minute" in windows:
            summary["up_to"] = windows["minute"][1].isoformat()
        return this.finish(summary)


def _windows(database: Database, options: RollupOptions) -> dict[str, tuple[datetime, datetime]]:
    given = {name: getattr(options, name) for name in ("first_at", "end_at", "margin", "settle")}
    with database.connect("pgqueue rollup") as conn:
        found = run_statement(conn, verbs.traffic_windows(**given))
    return {grain: (first, end) for grain, (first, end) in found.items() if first < end}


def _as_texts(windows: Windows) -> dict[str, list[str]]:
    return {grain: [at.astimezone(UTC).isoformat() for at in window] for grain, window in windows.items()}


def _count(spark: SparkSession, windows: Windows, database: Database, run_id: str) -> tuple[int, int]:
    since = min(first for first, _ in windows.values())
    # The queue before the archive: what moves from one to the other in between is seen twice, not never.
    waiting = _read(spark, "queue", since, "id,queue_name,created_at").localCheckpoint()
    archive = _read(
        spark, "archive", since, "id,queue_name,result,created_at,leased_at,archived_at,attempts,fingerprint"
    ).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with watching_tasks(spark, f"rollup {run_id}"):
            return _record(_traffic(waiting, archive, windows), database, run_id)
    finally:
        archive.unpersist()
        waiting.unpersist()


def _read(spark: SparkSession, table: str, since: datetime, columns: str) -> DataFrame:
    options = {"table": table, "columns": columns, "from": since.isoformat()}
    return spark.read.format("pgqueue").options(**options).load()


def _traffic(waiting: DataFrame, archive: DataFrame, windows: Windows) -> DataFrame:
    """Return one row for each bucket with anything in it."""
    waiting = waiting.join(archive.select("id"), "id", "left_anti")
    published = waiting.select("queue_name", "created_at").unionAll(archive.select("queue_name", "created_at"))
    arrivals = _in_buckets(published, "created_at", windows).groupBy(*_KEY).agg(F.count("*").alias("arrivals"))
    finished = _in_buckets(_timed(archive), "archived_at", windows)
    parts = (_results(finished), _percentiles(finished, "wait"), _percentiles(finished, "run"), _causes(finished))
    traffic = reduce(lambda left, right: left.join(right, list(_KEY), "full_outer"), parts, arrivals)
    return traffic.fillna(0, ["arrivals", *_RESULTS, "attempts", "attempts_max"])


def _in_buckets(rows: DataFrame, column: str, windows: Windows) -> DataFrame:
    """Return each row once for each grain, where its bucket is in the window."""

    def of(grain: str, first: datetime, end: datetime) -> DataFrame:
        at = F.unix_micros(column)
        bucket = F.timestamp_micros(at - F.pmod(at, F.lit(_SECONDS[grain] * 1_000_000)))
        inside = rows.where((at >= _micros(first)) & (at < _micros(end)))
        return inside.withColumns({"grain": F.lit(grain), "bucket_at": bucket})

    return reduce(DataFrame.unionAll, (of(grain, first, end) for grain, (first, end) in windows.items()))


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


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
    counts = [F.count_if(F.col("result") == result).alias(result) for result in _RESULTS]
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
    order = Window.partitionBy(*_KEY).orderBy(F.desc("messages"), "result", "fingerprint")
    top = dead.agg(F.count("*").alias("messages")).withColumn("place", F.row_number().over(order))
    listed = F.array_sort(F.collect_list(F.struct("place", "result", "fingerprint", "messages")))
    return (
        top.where(F.col("place") <= _CAUSES)
        .groupBy(*_KEY)
        .agg(F.transform(listed, lambda cause: cause.dropFields("place")).alias("dead_causes"))
    )


def _record(traffic: DataFrame, database: Database, run_id: str) -> tuple[int, int]:
    """Upsert the buckets in chunks; how many there were and how many changed."""
    rows = (
        row.json
        for row in traffic.select(F.to_json(F.struct("*"), {"timeZone": "UTC"}).alias("json")).toLocalIterator()
    )
    progress = Progress(f"rollup {run_id}, buckets")
    buckets = changed = 0
    with database.connect("pgqueue rollup") as conn:
        while chunk := list(islice(rows, _CHUNK)):
            changed += run_statement(conn, verbs.record_traffic(run_id, f"[{','.join(chunk)}]"))
            buckets += len(chunk)
            progress.at(buckets, changed=changed)
    return buckets, changed


@click.command("rollup")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@click.option("--from", "first_at", type=moment, help="Default: where the last run ended.")
@click.option("--to", "end_at", type=moment, help="Default: now, less the margin.")
@click.option(
    "--margin", type=duration, default="1m", show_default=True, help="Leave the last buckets to the next run."
)
@click.option("--settle", type=duration, default="1h", show_default=True, help="Count buckets as young as this again.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, **options: Any) -> Summary:
    """Count what went through the queues.

    By the minute, hour and day, into messages.traffic; read it with messages.traffic_report().
    """
    return rollup(spark, RollupOptions(run_id=run_id or new_run_id("rollup"), **options), database)
