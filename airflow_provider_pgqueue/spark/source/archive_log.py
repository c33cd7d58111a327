"""The archive as a log that a stream follows: each archived message exactly once per query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import BeforeArchive, InvalidArgument
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.database import Database, Session, reading, rows
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.log_end import LogEnd, LogPlan, LogWatch, Offset
from airflow_provider_pgqueue.spark.source.tables import ARCHIVE, compare, conditions

log = logging.getLogger(__name__)

_NAME: Final = "pgqueue archive log"
_OPTIONS: Final = (
    "table", "columns", "queue", "result", "reference", "topic", "startingOffsets", "maxMessagesPerTrigger",
    "numPartitions", "failOnDataLoss", "formerSystem",
)  # fmt: skip


class ArchiveLog(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log in whole transactions, and only what is behind the oldest transaction that still writes.

    So a message that commits late is neither lost nor given twice; it only waits. docs/decisions/0008 says more.
    """

    def __init__(self, database: Database, options: Mapping[str, str], schema: StructType) -> None:
        given.check_names(options, _OPTIONS, "A stream of the archive")
        self._database = database
        self._session = Session(database, _NAME)
        self._watch = LogWatch(self._session)
        self._plan = LogPlan(self._session)
        self._schema = ARCHIVE.arrow_schema(schema)
        self._starting = options.get("startingOffsets", "earliest")
        self._parts = given.number(options, "numPartitions", 8, at_most=10_000)
        self._max_messages = "maxMessagesPerTrigger" in options and given.number(options, "maxMessagesPerTrigger", 1)
        self._fail_on_data_loss = given.choice(options, "failOnDataLoss", ("true", "false"), default="true") == "true"
        self._former_system = options.get("formerSystem")
        self._conditions = conditions(options)
        self._initial: Offset | None = None
        self._target: LogEnd | None = None
        self._told: datetime | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts: `startingOffsets` is earliest, latest, or a moment.

        Spark asks again and again until the first batch is done: a reader keeps to its answer.
        """
        if self._initial is None:
            self._initial = self._start(self._watch.end())
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxMessagesPerTrigger`; without it a batch is all there is."""
        return ReadMaxRows(self._max_messages) if self._max_messages else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the log ends: the query ends there."""
        self._target = self._watch.end(now=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if there is nothing new."""
        here, asked = Offset.from_json(start), self._session.seconds
        now = self._watch.end()
        self._check(here, now)
        end = self._target or now
        step = self._plan.next_step(here.xid, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if step is None:
            self._watch.found_nothing(self._session.seconds - asked)
            return start
        at = end.moment if step.end == end.horizon else max(here.at, step.at or here.at)
        return Offset(system=end.system, xid=step.end, at=at, since=here.xid).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return where the log ends, for the progress of the query."""
        return self._watch.end().offset().to_json()

    def commit(self, end: dict[str, Any]) -> None:
        self._plan.forget(Offset.from_json(end).xid)

    def stop(self) -> None:
        self._session.close()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut a batch into up to `numPartitions` parts with about as many messages each."""
        here, there = Offset.from_json(start), Offset.from_json(end)
        if here.xid == there.xid:
            return []
        if there.since is not None:
            here = replace(here, xid=there.since)
        self._check(here, self._watch.end())
        read_at = self._plan.seen_until(here.xid, here.at)
        parts = self._plan.parts(here.xid, there.xid, self._parts)
        return [InputPartition((stretches, read_at)) for stretches in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part, by a short statement for each stretch of it; it can be repeated."""
        stretches, read_at = partition.value
        with self._database.arrow(_NAME) as conn:
            # Another server than the driver's, if several are in the connection string, may not have it yet.
            horizon, _, _ = _end(conn)
            if horizon < stretches[-1].end:
                raise InvalidArgument(
                    f"the batch goes to transaction {stretches[-1].end}, and this server knows those before {horizon}: "
                    "it is a replica that is behind. Let the executors connect to the server of the driver."
                )
            for stretch in stretches:
                yield from rows(conn, self._query(stretch.start, stretch.end), self._schema)
            if self._fail_on_data_loss:
                _, begins_at, gone_before_xid = _end(conn)
                if stretches[0].start < gone_before_xid and read_at < begins_at:
                    raise _loss(read_at, begins_at)

    def _query(self, start: int, end: int) -> str:
        within = [compare("xid", ">=", start), compare("xid", "<", end), *self._conditions]
        return ARCHIVE.statement(self._schema.names, within)

    def _start(self, end: LogEnd) -> Offset:
        if self._starting == "latest":
            return end.offset()
        if self._starting == "earliest":
            return Offset(system=end.system, xid=0, at=end.begins_at)
        moment = given.moment("startingOffsets", self._starting, others="earliest, latest, or ")
        if moment < end.begins_at and self._fail_on_data_loss:
            raise BeforeArchive(
                f"the archive begins at {end.begins_at}, after startingOffsets {self._starting}. "
                "Start later, or at earliest."
            )
        with self._database.connect(_NAME) as conn:
            # The first transaction that archived then or later, or may yet.
            ((xid,),) = conn.execute(query("first_xid_since"), [moment]).fetchall()
        xid = end.horizon if xid is None else min(xid, end.horizon)
        return Offset(system=end.system, xid=xid, at=max(moment, end.begins_at))

    def _check(self, here: Offset, end: LogEnd) -> None:
        end.check(here, former_system=self._former_system)
        read_at = self._plan.seen_until(here.xid, here.at)
        if end.lost(here.xid, read_at):
            if self._fail_on_data_loss:
                raise _loss(read_at, end.begins_at)
            if self._told != end.begins_at:
                self._told = end.begins_at
                log.warning("%s", _loss(read_at, end.begins_at))


def _end(conn: Any) -> Any:
    with reading(conn) as cursor:
        cursor.execute(query("log_end").decode())
        return cursor.fetchone()


def _loss(read_at: datetime, begins_at: datetime) -> BeforeArchive:
    return BeforeArchive(
        f"the query had read what was archived until {read_at}, and retention has removed what is older than "
        f"{begins_at}: what was archived between is lost to it. To continue with the rest, set failOnDataLoss to false."
    )
