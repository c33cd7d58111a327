"""Exports the archive: the tasks of Spark share out what one process would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core.argument import check, several
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import ExportError
from airflow_provider_pgqueue.export.exporter import RULES, SAFE, Exporter, Until
from airflow_provider_pgqueue.export.target import Target, shown
from airflow_provider_pgqueue.spark.pipelines.failure import raised_in_spark
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, for_each

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def export(
    spark: SparkSession,
    *,
    target: str,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    older_than: Duration = timedelta(0),
    partitions: Sequence[str] = (),
    drop: bool = False,
    until: Until = "completed",
) -> Summary:
    """Write completed partitions of the archive as Parquet, verify them, drop them if wanted.

    A partition is exported as a whole: the export is valid once its manifest exists. After a crash run it again; what
    is exported and unchanged is skipped. Before a partition is dropped, its files are read back, and PostgreSQL
    compares the md5 of their rows with that of its own; if they differ, the partition is exported again, once. A
    partition that cannot be dropped is listed in `kept` of the summary with the reason; nothing of it is lost. One that
    somebody else drops before it is exported is left out, unless it was asked for by name.

    :param target: Path or URI (file, s3, gs, hdfs) of a folder that driver and executors reach.
    :param older_than: Only partitions whose time ended at least this long ago.
    :param partitions: Only these, whatever their age.
    :param drop: Drop each partition after its export was compared with it.
    :param until: `now` also exports what is in partitions that still take messages; these are not dropped, and exported
        again when they have changed. By default such partitions are in `waiting` of the summary, with the reason.
    :raises InvalidArgument: for a partition that does not exist, or is not completed.
    :raises ExportError: if the target cannot be written; ExportDiffers if a partition changes all the time.
    """
    check(locals(), RULES)
    opened, names = Target.open(target), several("partitions", partitions)
    pipeline = replace(Pipeline.of(spark, "export", run_id, dsn, parallelism), about=(shown(target),))
    exporter = Exporter(pipeline.database, opened, _Tasks(pipeline, opened))
    return pipeline.once(lambda: exporter.all(older_than, names, drop=drop, until=until))


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks of Spark, which share the work of an export."""

    pipeline: Pipeline
    target: Target

    def __call__(self, items: Sequence[_Item], work: Callable[[_Item], _Done], doing: str = "") -> list[_Done]:
        """Return what the work returns for each item; see `ForEach`."""
        pipeline = self.pipeline
        tasks = pipeline.database.room(min(pipeline.parallelism, len(items)))
        try:
            with pipeline.watching(f", {doing}") if doing else nullcontext():
                # Another try would not help against an error of the target.
                return for_each(pipeline.spark, items, work, at_once=tasks, is_final=_is_of_target)
        except PySparkException as error:  # its text may quote data
            raise raised_in_spark(error) or ExportError(
                f"a task of the export to {self.target} failed on its executor. {SAFE} "
                "The log of the executor says why; run it again."
            ) from error


def _is_of_target(error: Exception) -> bool:
    return isinstance(error, OSError)
