"""Publishes a DataFrame, and each batch of a stream, once, even if tasks fail, run twice or are run again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, IntegralType, StringType, StructType, TimestampType

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import TRAVELS
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.source.options import check_names, number
from airflow_provider_pgqueue.spark.source.staging import Stage, StagedRows

log = logging.getLogger(__name__)

_COLUMNS: Final[dict[str, type[DataType]]] = {
    "message": StringType,
    "queue_name": StringType,
    "dedup_key": StringType,
    "visible_at": TimestampType,
    "expires_at": TimestampType,
    **{name: IntegralType if kind == "smallint" else StringType for name, kind in TRAVELS.items()},
}
_OPTIONS: Final = ("table", "queue", "runId", "dedupWindow", "maxConnections")
Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The options of `format("pgqueue")` for publishing; a queue for all rows, or a column `queue_name`."""

    queue_name: str | None
    run_id: str | None
    dedup_window: str | None
    max_connections: int

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> PublishOptions:
        """Read the options and check them and the columns; InvalidArgument names the first that is wrong."""
        if overwrite:
            raise InvalidArgument("a queue cannot be overwritten. Write with mode('append').")
        check_names(options, _OPTIONS, "A write")
        connections = number(options, "maxConnections", 8, at_most=1000)
        queue_name = options.get("queue")
        _check_columns(schema, queue_name)
        if options.get("dedupWindow") and "dedup_key" not in _lower(schema):
            raise InvalidArgument(
                "option dedupWindow is given, and there is no column dedup_key. Give both, or neither."
            )
        return cls(queue_name, options.get("runId"), options.get("dedupWindow"), connections)

    def stage(self, database: Database, stage_id: str) -> Stage:
        return Stage(database, stage_id, self.queue_name, self.dedup_window, self.max_connections)


def _check_columns(schema: StructType, queue_name: str | None) -> None:
    names = _lower(schema)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgument(f"there are two columns {twice}, which differ in case only. Drop one.")
    if "message" not in names:
        raise InvalidArgument("there is no column message. Make one: to_json(struct(...)).alias('message').")
    if (queue_name is None) == ("queue_name" not in names):
        raise InvalidArgument("the queue is not clear. Give either option queue or a column queue_name.")
    for field in schema:
        wanted = _COLUMNS.get(field.name.lower())
        if wanted is None:
            raise InvalidArgument(
                f"column {field.name!r} is unknown. Drop it, or put it into message: to_json(struct(...))."
            )
        if not isinstance(field.dataType, wanted):
            raise InvalidArgument(
                f"column {field.name} is of type {field.dataType.simpleString()}. "
                f"Cast it to {wanted.__name__.removesuffix('Type').lower()}; a message is made by to_json()."
            )


def _lower(schema: StructType) -> list[str]:
    """Return the names of the columns in lower case: Spark ignores the case, and databases differ in it."""
    return [name.lower() for name in schema.names]


class PublishWriter(DataSourceArrowWriter):
    """Publishes a DataFrame in one transaction: all rows or none, each once, in the order of partition and row.

    Each attempt of a task stages its rows, and those attempts that Spark takes are published.
    """

    def __init__(self, database: Database, options: PublishOptions) -> None:
        _check(database, options)
        options = replace(options, max_connections=database.room(options.max_connections))
        self._stage = options.stage(database, str(uuid4()))
        self._run_id = options.run_id or self._stage.stage_id
        self._is_new = self._stage.open(options.run_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        # Spark expects that all is read, also of a run that was published before.
        batches = (batch for batch in iterator if self._is_new)
        return self._stage.put(_task().partitionId(), batches)

    def commit(self, messages: Messages) -> None:
        _log(self._run_id, self._stage.publish(_staged(messages), run_id=self._run_id))

    def abort(self, messages: Messages) -> None:
        self._stage.drop()


class PublishStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each batch of a stream in one transaction, once, also when Spark replays it after a crash.

    The database remembers the last batch of each query, by the id in its checkpoint, and refuses one before it.
    """

    def __init__(self, database: Database, options: PublishOptions) -> None:
        """Check once that the database is there and takes what the options say.

        Spark makes a writer for each batch, in one process unless that had nothing to do for a minute. Those after the
        first open nothing here: if the database is away, their tasks wait for it, for a minute.
        """
        if options.run_id is not None:
            raise InvalidArgument("option runId is for batch writes. A stream is known by the id in its checkpoint.")
        self._database = database
        self._options = options
        _check(database, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        query_id = _task().getLocalProperty("sql.streaming.queryId")
        if not query_id:
            raise InvalidArgument(
                "this is not a task of a streaming query. Write with the default or AvailableNow trigger."
            )
        return self._options.stage(self._database, query_id).put(_task().partitionId(), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        for stage in self._stages(messages):
            _log(stage.stage_id, stage.publish(_staged(messages), run_id=stage.stage_id, batch=batchId))

    def abort(self, messages: Messages, batchId: int) -> None:
        for stage in self._stages(messages):
            stage.drop()

    def _stages(self, messages: Messages) -> list[Stage]:
        """Return the stage of the query; none if no task has said where it staged."""
        names = {staged.stage_id for staged in _staged(messages)}
        return [self._options.stage(self._database, name) for name in names]


@lru_cache
def _check(database: Database, options: PublishOptions) -> None:
    """Raise at once, on the driver, errors that the tasks would find after a minute, or the commit at the end."""
    with database.connect(check_schema=True) as conn:
        good = options.dedup_window is None
        with suppress(psycopg.DataError):
            good = good or conn.execute(query("is_dedup_window"), [options.dedup_window]).fetchone() == (True,)
        if not good:
            raise InvalidArgument(
                f"option dedupWindow is {str(options.dedup_window)[:50]!r}. "
                "Give a duration from 1 second to 366 days, such as 1 hour."
            )


def _log(run_id: str, done: Mapping[str, Any]) -> None:
    if done.get("repeated"):
        log.warning("run %s had published %s before: nothing was published", run_id, quantity(done["published"]))
    else:
        log.info(
            "run %s published %s and %s", run_id, quantity(done["published"]), quantity(done["duplicates"], "duplicate")
        )


def _task() -> Any:
    return TaskContext.get()


def _staged(messages: Messages) -> list[StagedRows]:
    return [message for message in messages if isinstance(message, StagedRows)]
