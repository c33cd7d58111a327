"""The common part of the pipelines: the run and its record, work in the tasks of Spark, and the progress log."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa
from pyspark.sql.utils import is_remote

from airflow_provider_pgqueue.core import errors, verbs
from airflow_provider_pgqueue.core.argument import check, function, optional, text, whole
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.pipelines.failure import missing_on_executors, raised_in_spark
from airflow_provider_pgqueue.spark.source.data_source import check_spark

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Summary = dict[str, Any]
_PARALLELISM: Final = 8
_PASSING: Final = (PgQueueError, errors.ConnectionFailed, errors.InUse, errors.StageIncomplete)
_T = TypeVar("_T")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The common arguments of the pipelines. They stay on the driver: tasks get only the database."""

    spark: SparkSession
    pipeline: str
    run_id: str
    database: Database
    parallelism: int
    about: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        pipeline: str,
        run_id: str | None,
        dsn: str | None,
        parallelism: int | None,
        *about: str,
    ) -> Self:
        """Return the pipeline that the arguments say; a run without a name is named by what it is about and this time.

        InvalidArgument for a name or a number that cannot be used.
        """
        check_spark(spark)
        given = {"run_id": run_id, "parallelism": parallelism}
        check(given, {"run_id": optional(text), "parallelism": optional(whole(1, 9999))})
        new = f"{'-'.join((pipeline, *about))[:200]}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        return cls(spark, pipeline, run_id or new, Database(dsn or ""), parallelism or _PARALLELISM, about)

    def once(self, work: Callable[[], Summary]) -> Summary:
        """Do the work and return its summary; if the run has finished, return the recorded summary at once.

        A run that raises or dies is not finished and is done again under the same name; the work must allow for that.
        If two calls do the same run at once, both return the summary of the first to finish.
        InvalidArgument if the name belongs to a run of another pipeline, or is about other queues.
        """
        # A session for each of the two questions: none has to survive the hours between them.
        recorded = self.ask(verbs.begin_run(self.run_id, self.pipeline))
        if recorded is not None:
            log.info("run %s of pipeline %s had finished: nothing is done again", self.run_id, self.pipeline)
            return self._summary(recorded)
        try:
            summary = work()
            recorded = self.ask(verbs.finish_run(self.run_id, to_json(summary | {"about": self.about})))
        except BaseException as error:
            # The text of the error may quote a body.
            name, again = type(error).__name__, "; run it again" if _may_pass(error) else ""
            log.error("run %s of pipeline %s ended with %s%s", self.run_id, self.pipeline, name, again)
            raise
        log.info("run %s of pipeline %s is done: %s", self.run_id, self.pipeline, as_line(summary))
        return self._summary(recorded)

    def _summary(self, recorded: Mapping[str, Any]) -> Summary:
        summary = dict(recorded)
        about = summary.pop("about", None)
        if about not in (None, list(self.about)):
            was, now = (", ".join(names) or "all" for names in (about, self.about))
            raise InvalidArgument(f"run {self.run_id!r} was about {was}, not {now}", "Give each run a name of its own.")
        return summary

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new autocommit session."""
        return self.database.connect(f"pgqueue {self.pipeline}")

    def ask(self, statement: Statement[_T]) -> _T:
        """Run a verb in a session of its own and return its result."""
        return self.database.run(statement, f"pgqueue {self.pipeline}")

    def at_once(self) -> int:
        """Return how many tasks can talk to PostgreSQL at once: `parallelism`, or as many as it has room for now."""
        return self.database.room(self.parallelism)

    def watching(self, doing: str = "") -> AbstractContextManager[None]:
        """Log, while a block runs, how many tasks of the current stages of Spark are done, and after how long."""
        began = time.monotonic()

        def log_progress() -> None:
            said = ""
            if not is_remote():  # Spark Connect does not show the tasks
                tracker = self.spark.sparkContext.statusTracker()
                stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_))]
                done, tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
                said = f"{done} of {quantity(tasks, 'task')} done, "
            log.info("%s %s%s: %sat work for %.0f s", self.pipeline, self.run_id, doing, said, time.monotonic() - began)

        return watching(log_progress)


def _may_pass(error: BaseException) -> bool:
    """Return whether the same run may end otherwise, with nothing changed but the time."""
    known = error if isinstance(error, PgQueueError) else raised_in_spark(error)
    return known is None or type(known) in _PASSING


def function_or_name(value: Any) -> str | None:
    """Check a function; a name is checked only when it is imported."""
    return None if isinstance(value, str) else function(value)


def as_line(summary: Mapping[str, Any]) -> str:
    """Return a summary as one line of JSON."""
    return json.dumps(summary, ensure_ascii=False, default=str)


def for_each(
    spark: SparkSession,
    items: Sequence[_Item],
    work: Callable[[_Item], _T],
    *,
    at_once: int,
    is_final: Callable[[Exception], bool] = lambda error: False,
) -> list[_T]:
    """Return what the work returns for each item, in their order, each from the one attempt that Spark counts.

    :param at_once: how many tasks share the items.
    :param is_final: returns True for an error that another attempt would not fix: the driver raises it, as it is.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done: _T | Exception = work(items[number])
                except Exception as error:
                    found = missing_on_executors(error)
                    if not (found or is_final(error)):
                        raise
                    done = found or error
                yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(done)]})

    tasks = max(1, min(len(items), at_once))
    try:
        rows = spark.range(0, len(items), 1, tasks).mapInArrow(task, "done binary").collect()
    except pickle.PicklingError as refusal:
        reason = " ".join(str(refusal).split()).removeprefix("Could not serialize object: ")
        raise InvalidArgument(
            f"the function cannot be sent to the tasks: {reason}",
            "Let it open connections, locks and files itself, or give its name, as module:function.",
        ) from None
    found = [pickle.loads(row.done) for row in rows]
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found
