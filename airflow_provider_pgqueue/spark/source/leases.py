"""A queue as a stream of leased messages, and the sink that archives each with its outcome."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.types.json import set_json_loads
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.consumer.held import Held
from airflow_provider_pgqueue.core.errors import InvalidArgument, QueuePaused
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.export.connection import Database, Session
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.outcomes import parse_outcomes
from airflow_provider_pgqueue.spark.source.tables import LEASED

_NAME: Final = "pgqueue lease stream"
_LOOK_EVERY: Final = 0.1  # seconds: Spark asks an idle stream every 10 ms
_MOST: Final = 10_000  # messages of one lease
_OPTIONS: Final = (
    "table", "columns", "queue", "streamName", "maxMessagesPerTrigger", "numPartitions", "leaseSeconds",
)  # fmt: skip
log = logging.getLogger(__name__)

_REQUIRED: Final = frozenset({"id", "lock_token"})


class LeaseStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives each batch what its named leases hold: a batch that is read again gets its own messages and no others.

    The offset counts batches. Part `p` of batch `b` leases on its executor under the name `STREAM/b/p`; whoever asks
    again under that name gets those of its messages that it still holds, with their leases extended.
    """

    def __init__(self, database: Database, options: Mapping[str, str], schema: StructType) -> None:
        given.check_names(options, _OPTIONS, "A stream of leases")
        self._database = database
        self._session = Session(database, _NAME)
        # Check this before the schema: without a name the schema is that of the table, which has other columns.
        self._stream = _stream_name(options)
        self._schema = LEASED.arrow_schema(schema)
        self._queue_name = _queue_name(options)
        self._parts = given.number(options, "numPartitions", 2, at_most=1000)
        self._max_messages = given.number(options, "maxMessagesPerTrigger", 1000, at_most=_MOST * self._parts)
        seconds = given.number(options, "leaseSeconds", 1, at_most=43200)
        self._lease_for = timedelta(seconds=seconds) if "leaseSeconds" in options else None
        self._initial: int | None = None
        self._left: int | None = None
        self._looked = 0.0

    def initialOffset(self) -> dict[str, Any]:
        """Return a number that no batch of this stream had: a new checkpoint meets no named lease of an old one.

        Spark asks again and again until the first batch is done: a reader keeps to its answer.
        """
        if self._initial is None:
            self._session.ask(verbs.status(self._queue_name))  # raises if there is no such queue
            # The offset is the database's clock in milliseconds, which goes on whichever driver asks.
            self._initial = int(self._database.now().timestamp() * 1000)
        return {"batch": self._initial}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how many batches it takes to lease what is ready now: the query ends then, or when nothing is ready."""
        self._left = -(-self._ready(count_up_to=2**31 - 1) // self._max_messages)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next batch if messages are ready, else `start`."""
        if self._left == 0 or (self._left is None and time.monotonic() - self._looked < _LOOK_EVERY):
            return start
        if self._ready(count_up_to=1) == 0:
            self._looked = time.monotonic()
            return start
        if self._left is not None:
            self._left -= 1
        return {"batch": start["batch"] + 1}

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the named leases of this batch and of those before it: the batch is done."""
        self._session.ask(verbs.end_named_leases(self._stream, self._queue_name, end["batch"] + 1))

    def stop(self) -> None:
        self._session.close()

    def _ready(self, *, count_up_to: int) -> int:
        found = self._session.ask(verbs.ready_queues([self._queue_name], count_up_to=count_up_to))
        return sum(queue.ready for queue in found)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Name the leases of a batch. Its end is its name, because Spark forgets the start of the first batch."""
        if start == end:
            return []
        parts = range(min(self._parts, self._max_messages))
        return [InputPartition(f"{self._stream}/{end['batch']}/{part}") for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Lease under a name, or get what was leased under it and is still held. Nothing while the queue is paused."""
        share, rest = divmod(self._max_messages, self._parts)
        statement = verbs.lease_named(
            partition.value,
            self._queue_name,
            max_messages=share + (int(partition.value.rpartition("/")[2]) < rest),
            lease_for=self._lease_for,
            locked_by=f"{self._stream} {process_name()}",
        )
        with self._database.connect(_NAME, patient=True) as conn:
            # JSON stays its text: it is not read and written anew, and loses no digit.
            set_json_loads(lambda data: data if isinstance(data, str) else data.decode(), conn)
            try:
                rows = run(conn, statement)
            except QueuePaused:
                return
        if rows:
            texts = [row | {"lock_token": str(row["lock_token"])} for row in rows]  # a token is a text in Spark
            yield pa.RecordBatch.from_pylist(texts, schema=self._schema)


def _stream_name(options: Mapping[str, str]) -> str:
    name: str = options.get("streamName", "")
    if not 1 <= len(name) <= 200 or "/" in name:
        raise InvalidArgument(
            f"option streamName is {name[:50]!r}. Give the stream a name of 1 to 200 characters without a slash, and "
            "the same one at every start: its leases are found by it."
        )
    return name


def _queue_name(options: Mapping[str, str]) -> str:
    names = given.queues(options)
    if len(names) != 1:
        raise InvalidArgument(f"option queue names {len(names)} queues. Give the one to lease from.")
    return names[0]


@dataclass(frozen=True, slots=True)
class _SinkCounts(WriterCommitMessage):
    """How many messages of a part ended how; `lost` are those whose lease was gone."""

    counts: Counter[str] = field(default_factory=Counter)


class ArchiveSink(DataSourceStreamArrowWriter):
    """Archives or releases the messages of the rows; docs/reference/spark-source.md has their columns.

    The token is the fence: what is written a second time, by a retry, a replay or a speculative task, changes nothing
    and counts as lost, like a message whose lease ended before.
    """

    def __init__(self, database: Database, schema: StructType) -> None:
        if missing := _REQUIRED - set(schema.fieldNames()):
            raise InvalidArgument(
                f"the stream has no column {', '.join(sorted(missing))}. Keep it from the lease stream."
            )
        self._database = database

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _SinkCounts:
        """Settle the messages of a part, with a call for each lease and batch; to repeat it does no harm."""
        counts: Counter[str] = Counter()
        with self._database.connect("pgqueue archive sink", patient=True) as conn:
            for batch in iterator:
                tokens = batch.column("lock_token")
                for token in tokens.unique().to_pylist():
                    own = batch.filter(pc.equal(tokens, token))
                    outcomes = parse_outcomes(own, giver="the stream")
                    repeated = Counter(lost=len(own) - len(outcomes))
                    held = Held(conn, _uuid(token), outcomes)
                    held.finish(outcomes)
                    counts += held.ends(outcomes) + repeated
        return _SinkCounts(counts)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how many messages of the batch ended how; the tasks have archived them."""
        counts = sum((message.counts for message in messages if isinstance(message, _SinkCounts)), Counter[str]())
        said = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items())) or quantity(0)
        log.log(logging.WARNING if counts["lost"] else logging.INFO, "batch %s: %s", batchId, said)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log that the batch will be tried again; what its tasks archived stays archived."""
        log.warning("batch %s was not finished; what it archived is done, the rest is delivered again", batchId)


def _uuid(token: Any) -> UUID:
    try:
        return UUID(token)
    except (ValueError, TypeError, AttributeError):
        # The token is the right to finish the message, so it is not shown.
        raise InvalidArgument("a lock_token is not one of a lease. Keep it from the lease stream.") from None
