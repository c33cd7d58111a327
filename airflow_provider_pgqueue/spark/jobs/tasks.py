"""Calls a Python function in the tasks of Spark, once for each item, and brings back what it returned."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def for_each(
    spark: SparkSession,
    items: Sequence[_Item],
    work: Callable[[_Item], _Done],
    *,
    at_once: int,
    is_final: Callable[[Exception], bool] = lambda error: False,
) -> list[_Done]:
    """Return what the work returns for each item, in their order, each from the one attempt that Spark counts.

    :param at_once: how many tasks share the items.
    :param is_final: returns True for an error that another attempt would not cure: the driver raises it, as it is.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done: _Done | Exception = work(items[number])
                except Exception as error:
                    if not is_final(error):
                        raise
                    done = error
                yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(done)]})

    tasks = max(1, min(len(items), at_once))
    rows = spark.range(0, len(items), 1, tasks).mapInArrow(task, "done binary").collect()
    found = [pickle.loads(row.done) for row in rows]
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found
