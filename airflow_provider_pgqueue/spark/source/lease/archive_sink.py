"""The sink of a lease stream: archives each message with its outcome, under the token of its lease."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, translate
from airflow_provider_pgqueue.core.outcome import storable
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.delay import delay_of

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
    and counts as lost, like a message whose lease ended before. Such a message is delivered again. An outcome that
    cannot be kept, such as an output that is not JSON, makes its own message `failed` and no other.
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
    outcomes = [_outcome(row) for row in rows]
    settled = _archive(conn, lock_token, [outcome for outcome in outcomes if outcome.result != "retry"])
    for (delay, why), again in _by_delay(outcome for outcome in outcomes if outcome.result == "retry").items():
        settled |= _release(conn, lock_token, again, delay, why)
    return Counter(settled.get(outcome.id, "lost") for outcome in outcomes)


@dataclass(frozen=True, slots=True)
class _Outcome:
    id: int
    result: str
    details: str | None = None
    output: str | None = None
    delay: timedelta | None = None

    def failed(self, why: str) -> _Outcome:
        """Return what takes the place of an outcome that cannot be kept: a dead message, which somebody will see."""
        log.warning("message %s ends as failed, not as %s: %s", self.id, self.result, why)
        return _Outcome(self.id, "failed", why)


def _outcome(row: Row) -> _Outcome:
    details = None if row.get("details") is None else storable(row["details"])
    outcome = _Outcome(row["id"], row["result"], details, row.get("output"))
    try:
        return replace(outcome, delay=delay_of(row.get("delay_seconds")))
    except InvalidArgument as error:
        return outcome.failed(str(error)) if outcome.result == "retry" else outcome


def _by_delay(outcomes: Iterator[_Outcome]) -> dict[tuple[timedelta | None, str | None], list[int]]:
    pauses: defaultdict[tuple[timedelta | None, str | None], list[int]] = defaultdict(list)
    for outcome in outcomes:
        pauses[outcome.delay, outcome.details].append(outcome.id)
    return pauses


def _archive(conn: psycopg.Connection[Any], lock_token: str, outcomes: Sequence[_Outcome]) -> dict[int, str]:
    """Archive; an outcome that PostgreSQL does not take is found by halving, and fails its message alone."""
    if not outcomes:
        return {}
    try:
        return _archived(conn, lock_token, outcomes)
    except (InvalidMessage, InvalidArgument) as error:
        if len(outcomes) == 1:
            return _archived(conn, lock_token, [outcomes[0].failed(_reason(error))])
    middle = len(outcomes) // 2
    return _archive(conn, lock_token, outcomes[:middle]) | _archive(conn, lock_token, outcomes[middle:])


def _archived(conn: psycopg.Connection[Any], lock_token: str, outcomes: Sequence[_Outcome]) -> dict[int, str]:
    arguments = {
        "lock_token": lock_token,
        "ids": [outcome.id for outcome in outcomes],
        "results": [outcome.result for outcome in outcomes],
        "details": [outcome.details for outcome in outcomes],
        "outputs": [outcome.output for outcome in outcomes],
    }
    done = _ids(conn, _ARCHIVE, arguments)
    return {outcome.id: outcome.result for outcome in outcomes if outcome.id in done}


def _reason(error: Exception) -> str:
    if isinstance(error, InvalidArgument):
        return f"{error}"
    return "its output is no JSON that PostgreSQL can store. Give text such as to_json makes."


def _release(
    conn: psycopg.Connection[Any], lock_token: str, ids: Sequence[int], delay: timedelta | None, why: str | None
) -> dict[int, str]:
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "delay": delay or timedelta(0),
        "why": why,
        "back_off": delay is None,
    }
    return dict.fromkeys(_ids(conn, _RELEASE, arguments), "retry")


def _ids(conn: psycopg.Connection[Any], query: str, arguments: dict[str, Any]) -> set[int]:
    try:
        return {id_ for (id_,) in conn.execute(query.encode(), arguments).fetchall()}
    except psycopg.Error as error:
        found = translate(error)
    # Outside of the handler: the error of the driver quotes the output that is not JSON.
    raise InvalidMessage("a text has a NUL") if isinstance(found, psycopg.DataError) else found
