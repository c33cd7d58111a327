"""Says in the log how far a pipeline is, while its driver waits for Spark, PostgreSQL or a target."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.jobs.run import EVERY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@contextmanager
def watching(say: Callable[[], None], *, every: float | None = None) -> Iterator[None]:
    """Call `say` every so many seconds, by default five, in a thread while the block works; its errors do no harm."""
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
        done, number = (0, 0) if is_remote() else _tasks(spark)
        log.info(
            "%s: %s of %s done, at work for %.0f s", what, done, quantity(number, "task"), time.monotonic() - began
        )

    return watching(say, every=every)


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Count the tasks of the stages at work: those that are done, and all."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_)) is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
