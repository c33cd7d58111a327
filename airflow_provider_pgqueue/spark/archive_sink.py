"""The sink of a lease stream: archives each message with its outcome, under the token of its lease."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import InvalidArgument, translate
from airflow_provider_pgqueue.spark.database import Database

log = logging.getLogger(__name__)

_REQUIRED: Final = frozenset({"id", "lock_token"})
_OPTIONAL: Final = frozenset({"result", "details", "output", "delay_seconds"})
_FINAL: Final = frozenset({"success", "failed", "rejected"})
# PostgreSQL puts the outcomes together, so that the text of an output is neither read nor changed on the way.
_ARCHIVE: Final = """
SELECT id FROM messages.archive(%(lock_token)s::uuid, %(ids)s::bigint[], outcomes => (
    SELECT jsonb_object_agg(o.id,
               jsonb_strip_nulls(jsonb_build_object('result', o.result, 'details', o.details))
               || CASE WHEN o.output IS NULL THEN '{}' ELSE jsonb_build_object('output', o.output::jsonb) END)
      FROM unnest(%(ids)s::bigint[], %(results)s::text[], %(details)s::text[], %(outputs)s::text[])
           AS o (id, result, details, output)
     WHERE o.result <> 'success' OR o.details IS NOT NULL OR o.output IS NOT NULL)) AS id
"""
_RELEASE: Final = """
SELECT id FROM messages.release(%(lock_token)s::uuid, %(ids)s::bigint[], %(delay)s,
                                details => %(why)s, back_off => %(back_off)s) AS id
"""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Archived(WriterCommitMessage):
    """How many messages of a part ended how; `lost` are those whose lease was gone."""

    counts: Counter[str] = field(default_factory=Counter)


class ArchiveSink(DataSourceStreamArrowWriter):
    """Takes rows with `id` and `lock_token`, and optionally `result`, `details`, `output` and `delay_seconds`.

    The token is the fence: what is written a second time, by a retry, a replay or a speculative task, changes nothing
    and counts as lost, like a message whose lease ended before. Such a message is delivered again.
    """

    def __init__(self, database: Database, schema: StructType) -> None:
        names = set(schema.fieldNames())
        if missing := _REQUIRED - names:
            raise InvalidArgument(
                f"the stream has no column {', '.join(sorted(missing))}. Keep it from the lease stream."
            )
        self._database = database

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Archived:
        """Archive or release the messages of a part, a call for each lease and batch; again does no harm."""
        counts: Counter[str] = Counter()
        with self._database.connect("pgqueue archive sink") as conn:
            for batch in iterator:
                kept = [name for name in batch.schema.names if name in _REQUIRED | _OPTIONAL]
                for lock_token, rows in _by_lease(batch.select(kept).to_pylist()).items():
                    counts.update(_settle(conn, lock_token, rows))
        return Archived(counts)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say how many messages of the batch ended how. They were archived by the tasks."""
        counts = sum((message.counts for message in messages if isinstance(message, Archived)), Counter[str]())
        said = ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "no messages"
        log.log(logging.WARNING if counts["lost"] else logging.INFO, "batch %s: %s", batchId, said)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say that the batch will be tried again: what its tasks archived stays archived."""
        log.warning("batch %s was not finished; what it archived is done, the rest is delivered again", batchId)


def _by_lease(rows: Sequence[Row]) -> dict[str, list[Row]]:
    leases: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        row["result"] = row.get("result") or "success"
        if row["result"] not in _FINAL | {"retry"}:
            raise InvalidArgument(f"result is {row['result'][:50]!r}. Give success, failed, rejected or retry.")
        leases[row["lock_token"]].append(row)
    return leases


def _settle(conn: psycopg.Connection[Any], lock_token: str, rows: Sequence[Row]) -> Counter[str]:
    final = [row for row in rows if row["result"] != "retry"]
    done = _archive(conn, lock_token, final) if final else set()
    for (delay, why), again in _by_delay(row for row in rows if row["result"] == "retry").items():
        done |= _release(conn, lock_token, again, delay, why)
    return Counter(row["result"] if row["id"] in done else "lost" for row in rows)


def _by_delay(rows: Iterator[Row]) -> dict[tuple[float | None, str | None], list[int]]:
    pauses: defaultdict[tuple[float | None, str | None], list[int]] = defaultdict(list)
    for row in rows:
        pauses[row.get("delay_seconds"), row.get("details")].append(row["id"])
    return pauses


def _archive(conn: psycopg.Connection[Any], lock_token: str, rows: Sequence[Row]) -> set[int]:
    arguments = {
        "lock_token": lock_token,
        "ids": [row["id"] for row in rows],
        "results": [row["result"] for row in rows],
        "details": [row.get("details") for row in rows],
        "outputs": [row.get("output") for row in rows],
    }
    return _ids(conn, _ARCHIVE, arguments)


def _release(
    conn: psycopg.Connection[Any], lock_token: str, ids: Sequence[int], delay: float | None, why: str | None
) -> set[int]:
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "delay": timedelta(seconds=delay or 0),
        "why": why,
        "back_off": delay is None,
    }
    return _ids(conn, _RELEASE, arguments)


def _ids(conn: psycopg.Connection[Any], query: str, arguments: dict[str, Any]) -> set[int]:
    try:
        return {id_ for (id_,) in conn.execute(query.encode(), arguments).fetchall()}
    except psycopg.Error as error:
        # Without the driver's error as the cause: it quotes the output that is not JSON.
        raise translate(error) from None
