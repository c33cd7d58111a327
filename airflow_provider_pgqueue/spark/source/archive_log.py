"""The archive as a log that a stream follows: each archived message exactly once per query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import BeforeArchive, InvalidArgument
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database, Session, reading, rows
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.log_end import USUAL_PACE, LogEnd, LogPace, LogPlan, LogWatch, Offset
from airflow_provider_pgqueue.spark.source.tables import ARCHIVE, compare, conditions

log = logging.getLogger(__name__)

_NAME: Final = "pgqueue archive log"
_OPTIONS: Final = (
    "table", "columns", "queue", "result", "reference", "topic", "startingOffsets", "maxMessagesPerTrigger",
    "numPartitions", "failOnDataLoss", "formerSystem",
)  # fmt: skip


class ArchiveLog(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log in whole transactions, and only what lies before the oldest transaction that still writes.

    So a message that commits late is neither lost nor given twice; it only waits. docs/decisions/0008 says more.
    """

    def __init__(
        self, database: Database, options: Mapping[str, str], schema: StructType, pace: LogPace = USUAL_PACE
    ) -> None:
        given.check_names(options, _OPTIONS, "A stream of the archive")
        self._database = database
        self._session = Session(database, _NAME)
        self._queues = given.queues(options)
        self._watch = LogWatch(self._session, self._queues, pace)
        self._plan = LogPlan(self._session, self._queues, pace)
        self._schema = ARCHIVE.arrow_schema(schema)
        self._starting = options.get("startingOffsets", "earliest")
        self._parts = given.number(options, "numPartitions", 8, at_most=10_000)
        self._read_limit: ReadLimit = ReadAllAvailable()
        if "maxMessagesPerTrigger" in options:
            self._read_limit = ReadMaxRows(given.number(options, "maxMessagesPerTrigger", 1))
        self._fail_on_data_loss = given.choice(options, "failOnDataLoss", ("true", "false"), default="true") == "true"
        self._former_system = options.get("formerSystem")
        self._conditions = conditions(options)
        self._initial: Offset | None = None
        self._target: LogEnd | None = None
        self._told = 0

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts: `startingOffsets` is earliest, latest, or a time.

        Spark asks again and again until the first batch is done: a reader keeps to its answer.
        """
        if self._initial is None:
            end = self._watch.end(after_removal=0)
            with self._database.connect(_NAME) as conn:
                given.check_queues(conn, self._queues)
            self._initial = self._start(end)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxMessagesPerTrigger`; without it a batch is all there is."""
        return self._read_limit

    def prepareForTriggerAvailableNow(self) -> None:
        """Record where the log ends: the query ends there."""
        self._target = self._watch.end(now=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if there is nothing new."""
        here, asked = Offset.from_json(start), self._session.seconds
        now = self._check(here)
        end = self._target or now
        step = self._plan.next_step(here.xid, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if step is None:
            self._watch.found_nothing(self._session.seconds - asked)
            return start
        return Offset(system=end.system, xid=step.end, removals=here.removals, since=here.xid).to_json()

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
            here = replace(here, xid=there.since, removals=there.removals)
        parts = self._plan.parts(here.xid, there.xid, self._database.room(self._parts))
        # Check afterwards: if the whole batch was removed, no part would notice.
        self._check(here, now=True)
        return [InputPartition((stretches, here.removals)) for stretches in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part, by a short statement for each stretch of it; it can be repeated."""
        stretches, removals = partition.value
        with self._database.arrow(_NAME) as conn:
            # If the connection string names several servers, another one than the driver's may not have it yet.
            horizon, _ = self._end(conn, removals)
            if horizon < stretches[-1].end:
                raise InvalidArgument(
                    f"the batch goes to transaction {stretches[-1].end}, and this server knows those before {horizon}: "
                    "it is a replica that is behind. Let the executors connect to the server of the driver."
                )
            for stretch in stretches:
                yield from rows(conn, self._query(stretch.start, stretch.end), self._schema)
                if self._fail_on_data_loss:
                    _, gone_before_xid = self._end(conn, removals)
                    if stretch.start < gone_before_xid:
                        raise _loss(stretch.start, gone_before_xid)

    def _end(self, conn: Any, removals: int) -> Any:
        asked = sql.SQL(query("log_end").decode()).format(sql.Literal(removals), sql.Literal(self._queues or None))
        with reading(conn) as cursor:
            cursor.execute(asked.as_string())
            return cursor.fetchone()

    def _query(self, start: int, end: int) -> str:
        within = [compare("xid", ">=", start), compare("xid", "<", end), *self._conditions]
        return ARCHIVE.statement(self._schema.names, within)

    def _start(self, end: LogEnd) -> Offset:
        if self._starting == "latest":
            return end.offset()
        if self._starting == "earliest":
            return Offset(system=end.system, xid=0, removals=end.removals)
        moment = given.moment("startingOffsets", self._starting, others="earliest, latest, or ")
        with self._database.connect(_NAME) as conn:
            # The first transaction that archived then or later, or may yet.
            ((xid,),) = conn.execute(query("first_xid_since"), [moment]).fetchall()
        gone_until = self._watch.end(now=True).gone_until
        if self._fail_on_data_loss and gone_until is not None and moment <= gone_until:
            raise BeforeArchive(
                f"what was archived at {gone_until} has been removed, and startingOffsets is {self._starting}. "
                "Start later, or at earliest with what is left."
            )
        xid = end.horizon if xid is None else min(xid, end.horizon)
        return Offset(system=end.system, xid=xid, removals=end.removals)

    def _check(self, here: Offset, *, now: bool = False) -> LogEnd:
        """Return the end of the log; an error if a query cannot continue from here, or messages are gone unread."""
        end = self._watch.end(after_removal=here.removals, now=now)
        end.check(here, former_system=self._former_system)
        if here.xid < end.gone_before_xid:
            if self._fail_on_data_loss:
                raise _loss(here.xid, end.gone_before_xid)
            if self._told != end.gone_before_xid:
                self._told = end.gone_before_xid
                log.warning("%s", _loss(here.xid, end.gone_before_xid))
        return end


def _loss(here: int, gone_before_xid: int) -> BeforeArchive:
    return BeforeArchive(
        f"the query had read what transactions before {here} archived, and since it began, retention or a drop removed "
        f"messages of transactions up to {gone_before_xid - 1}: those between are lost to it. To continue with the "
        "rest, set failOnDataLoss to false."
    )
