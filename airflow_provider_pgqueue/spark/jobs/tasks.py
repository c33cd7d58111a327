"""Calls Python functions in the tasks of Spark, and says in the log how far a job is."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.sql.utils import is_remote

from airflow_provider_pgqueue.core.quantity import quantity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")
log = logging.getLogger(__name__)

EVERY: Final = 5.0  # seconds between two lines


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


class Meter:
    """Logs how much of a long task is done and how fast, at most once in `every` seconds; `what` names the task."""

    def __init__(self, what: str, *, every: float = EVERY) -> None:
        self._what = what
        self.every = every
        self._said_at = time.monotonic()
        self._done = 0

    @property
    def due(self) -> bool:
        """Whether `at` would say something now: ask before counting what is expensive to count."""
        return time.monotonic() - self._said_at >= self.every

    def at(self, done: int, **others: int) -> None:
        """Log how much is done since the start, at which rate, and other counts: `at(3000, left=7000)`."""
        if not self.due:
            return
        rate = (done - self._done) / (time.monotonic() - self._said_at)
        also = "".join(f", {count:,} {name}" for name, count in others.items())
        log.info("%s: %s done%s, %s/s", self._what, f"{done:,}", also, f"{rate:,.0f}")
        self._said_at, self._done = time.monotonic(), done


@contextmanager
def watching(say: Callable[[], None], *, every: float | None = None) -> Iterator[None]:
    """Call `say` every so many seconds, by default five, in a thread while the block runs; its errors are logged."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(EVERY if every is None else every):
            try:
                say()
            except Exception as error:
                # Its text may quote data.
                log.warning("cannot say how far it is: %s", type(error).__name__)

    thread = threading.Thread(target=watch, name="pgqueue-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def watching_tasks(spark: SparkSession, what: str, *, every: float | None = None) -> AbstractContextManager[None]:
    """Say how many tasks of Spark are done in the stages that it is at, and after how long."""
    began = time.monotonic()

    def say() -> None:
        # Over Spark Connect nobody sees the tasks.
        done = "" if is_remote() else f"{_tasks(spark)} done, "
        log.info("%s: %sat work for %.0f s", what, done, time.monotonic() - began)

    return watching(say, every=every)


def _tasks(spark: SparkSession) -> str:
    """Count the tasks of the stages at work: those that are done, of all."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_)) is not None]
    done, tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"{done} of {quantity(tasks, 'task')}"
