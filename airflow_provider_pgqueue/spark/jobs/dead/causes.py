"""Counts dead messages by cause: near-identical messages of one queue, result and error class."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.dead.dead_rows import dead_rows, with_fingerprints
from airflow_provider_pgqueue.spark.jobs.dead.error_pattern import group, normalise
from airflow_provider_pgqueue.spark.jobs.dead.trend import Window, trend

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

Cause = dict[str, Any]  # the columns of messages.triage_cause
FINGERPRINTS: Final = 1000  # of one cause, most frequent first
SUMS: Final = ("dead", "undecided", "requeued", "dismissed", "died_again")
_KEY: Final = ("queue_name", "result", "error")
_COMPARED: Final = 5000  # fingerprints of one queue, result and error, most frequent first
_OTHERS: Final = "(other messages)"
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """The largest causes, the sums over all of them, and how many died in each step of the window."""

    causes: list[Cause]
    sums: Counter[str]
    series: list[int]

    @property
    def left_out(self) -> int:
        """How many died of causes that are not among the largest."""
        return self.sums["dead"] - sum(int(cause["dead"]) for cause in self.causes)


def find_causes(
    spark: SparkSession, database: Database, window: Window, queue_names: tuple[str, ...] = (), *, max_causes: int
) -> Causes:
    """Return what messages of these queues (by default of all) died of in a window; the causes with most deaths."""
    rows = dead_rows(spark, database, window, queue_names).persist()
    dead = _with_cause(_with_fate(with_fingerprints(rows, database), window), window).persist()
    try:
        counted = _counted(dead)
        largest = sorted(counted, key=lambda one: (-one["dead"], one["cause"]))[:max_causes]
        series = _add_series(dead, largest, window)
    finally:
        dead.unpersist()
        rows.unpersist()
    return Causes(
        causes=[_judged(one, window) for one in largest],
        sums=Counter({name: sum(one[name] for one in counted) for name in SUMS} | {"causes": len(counted)}),
        series=series,
    )


def _with_fate(rows: DataFrame, window: Window) -> DataFrame:
    """Keep what died in the window, and add which of it was requeued and died again since."""
    died_again = rows.where("requeued_from IS NOT NULL").select(f.col("requeued_from").alias("id")).distinct()
    known = rows.where(f.col("archived_at") < f.lit(window.end))
    again = f.expr("coalesce(again, false) AND remedy <=> 'requeued'")
    return known.join(died_again.withColumn("again", f.lit(True)), "id", "left").withColumn("again", again)


def _with_cause(dead: DataFrame, window: Window) -> DataFrame:
    """Add the cause of each and its pattern, its place in the series and in the window."""
    fingerprints = dead.groupBy(*_KEY, "fingerprint").agg(f.count("*").alias("dead"), f.min("text").alias("text"))
    schema = "queue_name string, result string, error string, fingerprint string, pattern string, cause string"
    causes = fingerprints.groupBy(*_KEY).applyInPandas(_name_causes, schema)
    since = f.unix_micros("archived_at") - _micros(window.first_step)
    return (
        dead.drop("text")
        .join(f.broadcast(causes), [*_KEY, "fingerprint"])
        .withColumn("step", f.floor(since / (window.step // _MICROSECOND)))
        .withColumn("lately", f.col("archived_at") >= f.lit(window.last_quarter))
    )


def _name_causes(fingerprints: pd.DataFrame) -> pd.DataFrame:
    """Give each fingerprint of one queue, result and error its pattern, and a name that depends on these four alone."""
    ordered = fingerprints.sort_values(["dead", "fingerprint"], ascending=[False, True], ignore_index=True)
    messages = [normalise(text) for text in ordered["text"][:_COMPARED]]
    patterns = group(messages)
    ordered["pattern"] = [patterns[message] for message in messages] + [_OTHERS] * (len(ordered) - len(messages))
    ordered["cause"] = [
        hashlib.sha256("\0".join(key).encode()).hexdigest()[:12]
        for key in ordered[[*_KEY, "pattern"]].itertuples(index=False, name=None)
    ]
    return ordered[[*_KEY, "fingerprint", "pattern", "cause"]]


def _counted(dead: DataFrame) -> list[Cause]:
    by_fingerprint = dead.groupBy("cause", "fingerprint").count()
    frequent = by_fingerprint.groupBy("cause").agg(
        f.max_by("fingerprint", f.struct("count", "fingerprint"), FINGERPRINTS).alias("fingerprints")
    )
    counted = dead.groupBy("cause").agg(
        *(f.first(name).alias(name) for name in (*_KEY, "pattern")),
        f.count("*").alias("dead"),
        f.count_if(f.col("remedy").isNull()).alias("undecided"),
        f.count_if(f.col("remedy") == "requeued").alias("requeued"),
        f.count_if(f.col("remedy") == "dismissed").alias("dismissed"),
        f.count_if("again").alias("died_again"),
        f.count_if("lately").alias("lately"),
        f.unix_micros(f.min("archived_at")).alias("first_at"),
        f.unix_micros(f.max("archived_at")).alias("last_at"),
        f.max_by(f.struct("id", "reference"), f.struct("archived_at", "id"), 5).alias("samples"),
    )
    return [row.asDict(recursive=True) for row in counted.join(frequent, "cause").collect()]


def _add_series(dead: DataFrame, causes: list[Cause], window: Window) -> list[int]:
    """Give each cause its series, and return that of all deaths."""
    total = [0] * window.steps
    by_name = {cause["cause"]: cause for cause in causes}
    for cause in causes:
        cause["series"] = [0] * window.steps
    kept = f.when(f.col("cause").isin(list(by_name)), f.col("cause"))
    for name, step, count in dead.groupBy(kept.alias("cause"), "step").count().collect():
        total[step] += count
        if name is not None:
            by_name[name]["series"][step] = count
    return total


def _judged(cause: Cause, window: Window) -> Cause:
    first_at, last_at = _moment(cause.pop("first_at")), _moment(cause.pop("last_at"))
    samples, lately = cause.pop("samples"), cause.pop("lately")
    return cause | {
        "error": cause["error"] or None,
        "first_at": first_at,
        "last_at": last_at,
        "trend": trend(window, before=cause["dead"] - lately, lately=lately, first_at=first_at),
        "series_from": window.first_step,
        "series_step": window.step,
        "sample_ids": [sample["id"] for sample in samples],
        "sample_references": [sample["reference"] for sample in samples],
    }


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
