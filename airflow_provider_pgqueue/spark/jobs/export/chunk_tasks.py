"""Work on the chunks of a partition as tasks of Spark; what a task refuses comes back as the error that it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_pgqueue.spark.jobs.export.manifest import Chunk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def for_each_chunk(
    spark: SparkSession, chunks: Sequence[Chunk], work: Callable[[Chunk], Any], *, at_once: int
) -> list[Any]:
    """Return what the work gives for each chunk, as JSON has it, of the attempt that Spark counts.

    OSError if a task could not use the target.
    """
    if not chunks:
        return []

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"report": [_report(work, chunks[number])]})

    rows = spark.range(0, len(chunks), 1, min(len(chunks), at_once)).mapInArrow(task, "report string").collect()
    return [_done(json.loads(row.report)) for row in rows]


def _report(work: Callable[[Chunk], Any], chunk: Chunk) -> str:
    try:
        return json.dumps({"done": work(chunk)}, default=_plain)
    except OSError as error:  # of the target: to try again would not help
        return json.dumps({"refused": [error.errno, error.strerror or str(error)]})


def _done(report: dict[str, Any]) -> Any:
    if "refused" in report:
        raise OSError(*report["refused"])
    return report["done"]


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value.isoformat()
