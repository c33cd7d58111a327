"""One job under the name of its run: where it reads, with how many tasks, and its place in the ledger of runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, optional, whole
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.tasks import watching_tasks
from airflow_provider_pgqueue.spark.source.data_source import data_source

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Summary = dict[str, Any]
Result = Literal["success", "failed", "rejected", "lock_expired", "expired"]
_PARALLELISM: Final = 8
_number = count(1)
_formats: Final[dict[Database, str]] = {}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Job:
    """What the signatures of the jobs have in common. It stays on the driver: tasks get the database."""

    spark: SparkSession
    pipeline: str
    run_id: str
    database: Database
    parallelism: int

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
        """Return the job that the arguments say; a run that nobody named is named by what it is about and this moment.

        :param parallelism: how many tasks may talk to PostgreSQL at once, by default 8.
        """
        check({"parallelism": parallelism}, {"parallelism": optional(whole(1, 9999))})
        new = "-".join((pipeline, *about, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")))
        return cls(spark, pipeline, run_id or new, Database(dsn or ""), parallelism or _PARALLELISM)

    def once(self, work: Callable[[], Summary]) -> Summary:
        """Do the work and return its summary; if the run has finished, return the recorded summary at once.

        A run that raises or dies is not finished and is done again under the same name; the work must allow for that.
        Of two at once the summary of the first stays, and both return it. InvalidArgument if the name belongs to a run
        of another pipeline.
        """
        # A session for each of the two questions: none has to survive the hours between them.
        noted = self.ask(verbs.begin_run(self.run_id, self.pipeline))
        if noted is not None:
            log.info("run %s of pipeline %s had finished: nothing is done again", self.run_id, self.pipeline)
            return dict(noted)
        try:
            summary = work()
            noted = self.ask(verbs.finish_run(self.run_id, to_json(summary)))
        except BaseException as error:
            # The text of the error may quote a body.
            name = type(error).__name__
            log.error("run %s of pipeline %s ended with %s; run it again", self.run_id, self.pipeline, name)
            raise
        log.info("run %s of pipeline %s is done: %s", self.run_id, self.pipeline, as_line(summary))
        return dict(noted or summary)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new autocommit session."""
        return self.database.connect(f"pgqueue {self.pipeline}")

    def ask(self, statement: Statement[_T]) -> _T:
        """Run a verb in a session of its own and return its result."""
        return self.database.run(statement, f"pgqueue {self.pipeline}")

    def require_queues(self, queues: Collection[str]) -> None:
        """Raise QueueNotFound for the first name that no queue has, so that it does not pass for an empty queue."""
        if queues:
            self.ask(verbs.check_queues_exist(queues))

    def watching(self, doing: str = "") -> AbstractContextManager[None]:
        """Say in the log how far the tasks are while a block runs."""
        return watching_tasks(self.spark, f"{self.pipeline} {self.run_id}{doing}")

    def read(
        self,
        table: str,
        columns: str,
        *,
        queues: Sequence[str] = (),
        since: datetime | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> DataFrame:
        """Return rows of the `archive` or the `queue`; `since` is a time of archiving, or of publishing.

        `options` are further options of the data source.
        """
        given = {"table": table, "columns": columns, "numPartitions": str(self.parallelism)} | dict(options)
        if queues:
            given["queue"] = ",".join(queues)
        if since is not None:
            given["from"] = since.isoformat()
        # A format of this database alone: `pgqueue` may be registered for another one in the session.
        name = _formats.setdefault(self.database, f"pgqueue_{next(_number)}")
        self.spark.dataSource.register(data_source(self.database, name))
        return self.spark.read.format(name).options(**given).load()


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single text is one name, not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def as_line(summary: Mapping[str, Any]) -> str:
    """Return a summary as one line of JSON."""
    return json.dumps(summary, ensure_ascii=False, default=str)
