"""Counts dead messages by cause: near-identical messages of one queue, result and error class."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from airflow_provider_pgqueue.core.dead_causes import Period, group, normalise, trend
from airflow_provider_pgqueue.core.message import DEAD_RESULTS
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

Cause = dict[str, Any]  # the columns of messages.triage_cause
FINGERPRINTS: Final = 1000  # of one cause, most frequent first
SUMS: Final = ("dead", "unremedied", "requeued", "dismissed", "died_again")
_KEY: Final = ("queue_name", "result", "error")
_DEAD: Final = ",".join(DEAD_RESULTS)
_COLUMNS: Final = "id,queue_name,result,archived_at,requeued_from,reference,fingerprint,remedy,details,failure"
_LONGEST: Final = 2000  # characters of an error or message: what messages.fingerprint() looks at
_COMPARED: Final = 5000  # fingerprints of one queue, result and error, most frequent first
_OTHERS: Final = "(other messages)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """The largest causes, the sums over all of them, and how many died in each step of the period."""

    causes: list[Cause]
    sums: Counter[str]
    series: list[int]

    @property
    def left_out(self) -> int:
        """How many died of causes that are not among the largest."""
        return self.sums["dead"] - sum(int(cause["dead"]) for cause in self.causes)


def find_causes(pipeline: Pipeline, period: Period, queues: Sequence[str], max_causes: int) -> Causes:
    """Return what messages of these queues (by default of all) died of in a period; the causes with most deaths."""
    rows = _dead_rows(pipeline, period, queues).persist()
    dead = _with_cause(_with_fate(_with_fingerprints(rows, pipeline.database), period), period).persist()
    try:
        counted = _counted(dead)
        largest = sorted(counted, key=lambda one: (-one["dead"], one["cause"]))[:max_causes]
        series = _add_series(dead, largest, period)
    finally:
        dead.unpersist()
        rows.unpersist()
    return Causes(
        causes=[_judged(one, period) for one in largest],
        sums=Counter({name: sum(one[name] for one in counted) for name in SUMS} | {"causes": len(counted)}),
        series=series,
    )


def _dead_rows(pipeline: Pipeline, period: Period, queues: Sequence[str]) -> DataFrame:
    """Return what died since the period began; `error` and `text` are what it died of, cut off."""
    rows = pipeline.read("archive", _COLUMNS, queues=queues, since=period.begin, options={"result": _DEAD})
    said = F.coalesce(F.get_json_object("failure", "$.message"), "details", F.lit(""))
    error = F.coalesce(F.get_json_object("failure", "$.error"), F.lit(""))
    rows = rows.withColumns({"error": F.substring(error, 1, _LONGEST), "text": F.substring(said, 1, _LONGEST)})
    return rows.withColumn("reference", F.substring("reference", 1, 200)).drop("details", "failure")


def _with_fingerprints(rows: DataFrame, database: Database) -> DataFrame:
    """Give rows that plain SQL archived without a fingerprint the one that requeue_dead knows them by.

    The rows must be persisted: Spark 4.2 mixes up the filters of one Python source that is read twice in a query.
    """
    without = rows.where("fingerprint IS NULL")
    found = without.mapInPandas(_fingerprints(database), without.schema)
    return rows.where("fingerprint IS NOT NULL").unionByName(found)


def _fingerprints(database: Database) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    def fill(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            if not len(batch):
                continue
            with database.connect("pgqueue triage") as conn:
                given = [list(batch[name]) for name in ("result", "text", "error")]
                rows = conn.execute(query("fingerprints"), given).fetchall()
            yield batch.assign(fingerprint=[fingerprint for (fingerprint,) in rows])

    return fill


def _with_fate(rows: DataFrame, period: Period) -> DataFrame:
    """Keep what died in the period, and add which of it was requeued and died again since."""
    died_again = rows.where("requeued_from IS NOT NULL").select(F.col("requeued_from").alias("id")).distinct()
    known = rows.where(F.col("archived_at") < F.lit(period.end))
    again = F.expr("coalesce(again, false) AND remedy <=> 'requeued'")
    return known.join(died_again.withColumn("again", F.lit(True)), "id", "left").withColumn("again", again)


def _with_cause(dead: DataFrame, period: Period) -> DataFrame:
    """Add the cause of each and its pattern, its place in the series and in the period."""
    fingerprints = dead.groupBy(*_KEY, "fingerprint").agg(F.count("*").alias("dead"), F.min("text").alias("text"))
    schema = "queue_name string, result string, error string, fingerprint string, pattern string, cause string"
    causes = fingerprints.groupBy(*_KEY).applyInPandas(_name_causes, schema)
    since = F.unix_micros("archived_at") - F.unix_micros(F.lit(period.first_step))
    return (
        dead.drop("text")
        .join(F.broadcast(causes), [*_KEY, "fingerprint"])
        .withColumn("step", F.floor(since / (period.step // timedelta(microseconds=1))))
        .withColumn("lately", F.col("archived_at") >= F.lit(period.last_quarter))
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
        F.max_by("fingerprint", F.struct("count", "fingerprint"), FINGERPRINTS).alias("fingerprints")
    )
    counted = dead.groupBy("cause").agg(
        *(F.first(name).alias(name) for name in (*_KEY, "pattern")),
        F.count("*").alias("dead"),
        F.count_if(F.col("remedy").isNull()).alias("unremedied"),
        F.count_if(F.col("remedy") == "requeued").alias("requeued"),
        F.count_if(F.col("remedy") == "dismissed").alias("dismissed"),
        F.count_if("again").alias("died_again"),
        F.count_if("lately").alias("lately"),
        F.min("archived_at").alias("first_at"),
        F.max("archived_at").alias("last_at"),
        F.max_by(F.struct("id", "reference"), F.struct("archived_at", "id"), 5).alias("samples"),
    )
    found: list[Cause] = counted.join(frequent, "cause").toArrow().to_pylist()  # times keep their zone
    return found


def _add_series(dead: DataFrame, causes: list[Cause], period: Period) -> list[int]:
    """Give each cause its series, and return that of all deaths."""
    total = [0] * period.steps
    by_name = {cause["cause"]: cause for cause in causes}
    for cause in causes:
        cause["series"] = [0] * period.steps
    kept = F.when(F.col("cause").isin(list(by_name)), F.col("cause"))
    for name, step, count in dead.groupBy(kept.alias("cause"), "step").count().collect():
        total[step] += count
        if name is not None:
            by_name[name]["series"][step] = count
    return total


def _judged(cause: Cause, period: Period) -> Cause:
    first_at, last_at = (cause[name].astimezone(UTC) for name in ("first_at", "last_at"))
    samples, lately = cause.pop("samples"), cause.pop("lately")
    return cause | {
        "error": cause["error"] or None,
        "first_at": first_at,
        "last_at": last_at,
        "trend": trend(period, before=cause["dead"] - lately, lately=lately, first_at=first_at),
        "sample_ids": [sample["id"] for sample in samples],
        "sample_references": [sample["reference"] for sample in samples],
    }
