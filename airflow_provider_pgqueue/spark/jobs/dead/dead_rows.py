"""Reads dead messages for the triage: the columns that it needs and no bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.dead.trend import Window

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

DEAD: Final = "failed,rejected,lock_expired,expired"
_COLUMNS: Final = "id,queue_name,result,archived_at,requeued_from,reference,fingerprint,remedy,details,failure"
_LONGEST: Final = 2000  # characters of an error or message: what messages.fingerprint() looks at


def dead_rows(spark: SparkSession, database: Database, window: Window, queue_names: tuple[str, ...] = ()) -> DataFrame:
    """Return what died from the beginning of the window until now; `error` and `text` are what it died of, cut off."""
    said = f.coalesce(f.get_json_object("failure", "$.message"), "details", f.lit(""))
    return _archived(spark, database, window, queue_names).select(
        "id",
        "queue_name",
        "result",
        "archived_at",
        "requeued_from",
        f.substring("reference", 1, 200).alias("reference"),
        "remedy",
        f.substring(f.coalesce(f.get_json_object("failure", "$.error"), f.lit("")), 1, _LONGEST).alias("error"),
        f.substring(said, 1, _LONGEST).alias("text"),
        "fingerprint",
    )


def _archived(spark: SparkSession, database: Database, window: Window, queue_names: tuple[str, ...]) -> DataFrame:
    reader = spark.read.format("pgqueue").option("table", "archive").option("columns", _COLUMNS).option("result", DEAD)
    if queue_names:
        reader = reader.option("queue", ",".join(queue_names))
    return reader.option("from", window.begin.isoformat()).load()


def with_fingerprints(rows: DataFrame, database: Database) -> DataFrame:
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
                rows = conn.execute(
                    """
                    SELECT messages.fingerprint(result, text, jsonb_build_object('error', error))
                      FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS g (result, text, error, place)
                     ORDER BY place
                    """,
                    [list(batch[name]) for name in ("result", "text", "error")],
                ).fetchall()
            yield batch.assign(fingerprint=[fingerprint for (fingerprint,) in rows])

    return fill
