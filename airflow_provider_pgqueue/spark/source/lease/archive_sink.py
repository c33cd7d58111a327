"""The sink of a lease stream: archives each message with its outcome, under the token of its lease."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.outcomes import parse_outcomes, settle

log = logging.getLogger(__name__)

_REQUIRED: Final = frozenset({"id", "lock_token"})


@dataclass(frozen=True, slots=True)
class _SinkCounts(WriterCommitMessage):
    """How many messages of a part ended how; `lost` are those whose lease was gone."""

    counts: Counter[str] = field(default_factory=Counter)


class ArchiveSink(DataSourceStreamArrowWriter):
    """Takes rows with `id` and `lock_token`, and optionally `result`, `details`, `output` and `delay_seconds`.

    The token is the fence: what is written a second time, by a retry, a replay or a speculative task, changes nothing
    and counts as lost, like a message whose lease ended before. Such a message is delivered again. An outcome that
    cannot be kept, such as an output that is not JSON, makes its own message `failed` and no other.
    """

    def __init__(self, database: Database, schema: StructType) -> None:
        if missing := _REQUIRED - set(schema.fieldNames()):
            raise InvalidArgument(
                f"the stream has no column {', '.join(sorted(missing))}. Keep it from the lease stream."
            )
        self._database = database

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _SinkCounts:
        """Archive or release the messages of a part, a call for each lease and batch; to repeat it does no harm."""
        counts: Counter[str] = Counter()
        with self._database.connect("pgqueue archive sink") as conn:
            for batch in iterator:
                tokens = batch.column("lock_token")
                for token in tokens.unique().to_pylist():
                    own = batch.filter(pc.equal(tokens, token))
                    counts.update(settle(conn, _uuid(token), parse_outcomes(own, giver="the stream"))[0])
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
