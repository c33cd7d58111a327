"""Reads outcomes from a table with a row for each message, which the function of a drain or a stream gives."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, LeaseLost
from airflow_provider_pgqueue.core.lease import settlement
from airflow_provider_pgqueue.core.outcome import Retry

log = logging.getLogger(__name__)

RESULTS: Final = ("success", "rejected", "failed", "retry")
_LONGEST_DELAY: Final = timedelta(days=366)

_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
_NUMBER: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
_ACCEPTED: Final[Mapping[str, tuple[tuple[Callable[[Any], bool], ...], str]]] = {
    "id": ((pa.types.is_integer,), "whole numbers"),
    "result": (_TEXT, f"one of {', '.join(RESULTS)}"),
    "details": (_TEXT, "text"),
    "output": (_TEXT, "JSON as text"),
    "delay_seconds": (_NUMBER, "numbers"),
}
COLUMNS: Final = tuple(_ACCEPTED)


@dataclass(slots=True)
class Outcomes:
    """How messages end, by columns: those that are archived, each with its result, and those that are delivered again.

    `outputs` are JSON texts that nobody has checked: PostgreSQL does, when they are settled.
    """

    ids: list[int] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    retries: dict[int, Retry] = field(default_factory=dict)

    def add(self, other: Outcomes) -> None:
        """Take over the outcomes of other messages."""
        self.ids += other.ids
        self.results += other.results
        self.details += other.details
        self.outputs += other.outputs
        self.retries |= other.retries


def outcomes_of(returned: Any, ids: list[int]) -> Outcomes:
    """Return what a function returned as outcomes; InvalidArgument says what is wrong with it.

    None is success for all. Else a pyarrow.Table, a RecordBatch or a pandas.DataFrame with the columns `id` and
    `result`, and if wanted `details`, `output` (JSON) and `delay_seconds` (with retry; without it the
    back-off of the queue). A message that it leaves out is a success, one whose outcome cannot be kept is `failed`.
    """
    found = Outcomes()
    if returned is not None:
        rows = _as_table(returned)
        names = rows.column_names
        if unknown := sorted(set(names) - set(COLUMNS)):
            raise InvalidArgument(f"the function gave the columns {unknown}. Known are {', '.join(COLUMNS)}.")
        if len(set(names)) < len(names) or not {"id", "result"} <= set(names):
            raise InvalidArgument(f"the function gave the columns {names}. Give id and result, each column once.")
        if rows.column("result").null_count:
            raise InvalidArgument(f"the function gave a row without a result. Give one of {', '.join(RESULTS)}.")
        found = parse_outcomes(rows, giver="the function")
    given = {*found.ids, *found.retries}
    if returned is not None and len(given) < len(rows):
        raise InvalidArgument("the function gave two rows for one message. Give one row a message.")
    if strangers := sorted(given.difference(ids)):
        raise InvalidArgument(f"the function gave outcomes for messages that it did not get: {strangers[:10]}")
    rest = [id_ for id_ in ids if id_ not in given] if given else ids
    nothing = [None] * len(rest)
    found.add(Outcomes(rest, ["success"] * len(rest), [*nothing], [*nothing]))
    return found


def _as_table(returned: Any) -> pa.Table:
    if isinstance(returned, pa.Table):
        return returned
    if isinstance(returned, pa.RecordBatch):
        return pa.Table.from_batches([returned])
    if type(returned).__module__.partition(".")[0] != "pandas" or not hasattr(returned, "columns"):
        raise InvalidArgument(
            f"the function returned a {type(returned).__name__}. "
            "Return None, a pyarrow.Table, a pyarrow.RecordBatch or a pandas.DataFrame."
        )
    try:
        return pa.Table.from_pandas(returned, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        # The text of the error quotes a value.
        raise InvalidArgument(
            f"the DataFrame that the function returned is not a table ({type(error).__name__}). "
            "Give each column one type: whole numbers as id, text as result, details and output."
        ) from None


def parse_outcomes(rows: pa.Table | pa.RecordBatch, *, giver: str) -> Outcomes:
    """Return the outcomes in rows; only `id` is needed, no result is success, other columns are ignored.

    A retry keeps no output, and only a retry has a delay; one out of range makes its own message `failed`, with the
    reason in its details and in the log. A column of another type or a result that does not exist is a mistake in all
    rows: it is an InvalidArgument.

    :param giver: who gave the rows, for errors: "the function".
    """
    rows = rows.select([name for name in COLUMNS if name in rows.schema.names])
    for name, kind in zip(rows.schema.names, rows.schema.types, strict=True):
        accepted, cure = _ACCEPTED[name]
        if not any(accepts(kind) for accepts in accepted):
            raise InvalidArgument(f"{giver} gave the column {name} as {kind}. Give {cure}.")
    if rows.column("id").null_count:
        raise InvalidArgument(f"{giver} gave a row without an id. Keep the id of each message.")
    results = pc.fill_null(_texts(rows, "result"), "success")
    known = pc.is_in(results, pa.array(RESULTS))
    if not pc.all(known).as_py():
        wrong = results.filter(pc.invert(known))[0].as_py()
        raise InvalidArgument(f"{giver} gave the result {wrong[:20]!r}. Give one of {', '.join(RESULTS)}.")
    details = pc.replace_substring(_texts(rows, "details"), "\0", "\ufffd")
    again = pc.equal(results, "retry")
    found = Outcomes()
    if pc.any(again).as_py():
        retries = rows.filter(again).to_pylist()
        for row, reason in zip(retries, details.filter(again).to_pylist(), strict=True):
            _add_retry(found, row["id"], row.get("delay_seconds"), reason)
        final = pc.invert(again)
        rows, results, details = rows.filter(final), results.filter(final), details.filter(final)
    for result, said in (("rejected", f"rejected by {giver}"), ("failed", f"failed, says {giver}")):
        unsaid = pc.and_(pc.equal(results, result), pc.fill_null(pc.equal(details, ""), True))
        details = pc.if_else(unsaid, said, details)
    columns = (rows.column("id"), results, details, _texts(rows, "output"))
    found.add(Outcomes(*(column.to_pylist() for column in columns)))
    return found


def _texts(rows: pa.Table | pa.RecordBatch, name: str) -> Any:
    if name not in rows.schema.names:
        return pa.nulls(len(rows), pa.string())
    return rows.column(name).cast(pa.large_string())


def _add_retry(found: Outcomes, id_: int, seconds: Any, reason: str | None) -> None:
    # pandas says NaN where there is nothing, and Spark for 0.0 / 0.0 and for a text that is not a number.
    if seconds is None or math.isnan(seconds):
        found.retries[id_] = Retry(None, reason)
    elif 0 <= seconds <= _LONGEST_DELAY.total_seconds():
        found.retries[id_] = Retry(timedelta(seconds=float(seconds)), reason)
    else:
        error = f"delay_seconds is {seconds}. Give 0 to 366 days, or none for the back-off of the queue."
        log.warning("message %s ends as failed, not as retry: %s", id_, error)
        found.add(Outcomes([id_], ["failed"], [error], [None]))


def settle(
    conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, *, handled_by: str | None = None
) -> tuple[Counter[str], set[int]]:
    """Settle messages of a lease; return how many ended how, with `lost`, and the ids of the lost.

    One call archives, and one call per kind of retry releases. An output that PostgreSQL cannot store, or of more than
    64 kB, makes its own message `failed`, with the reason in its details and in the log.
    """
    counts, lost = _archive(conn, lock_token, outcomes, handled_by) if outcomes.ids else (Counter[str](), set[int]())
    for ids, statement in settlement(lock_token, outcomes.retries):
        gone: set[int] = set()
        try:
            run(conn, statement)
        except LeaseLost as error:
            gone = set(error.ids)
        counts["retry"] += len(ids) - len(gone)
        lost |= gone
    return counts + Counter(lost=len(lost)), lost


def _archive(
    conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, handled_by: str | None
) -> tuple[Counter[str], set[int]]:
    counts, lost = Counter[str](), set[int]()
    try:
        lost = set(archive(conn, lock_token, outcomes, handled_by))
    except (InvalidArgument, InvalidMessage) as error:
        # In a transaction nothing can follow an error of the server.
        if conn.info.transaction_status is TransactionStatus.INERROR:
            raise
        for part in _apart(outcomes, error):
            more, gone = _archive(conn, lock_token, part, handled_by)
            counts += more
            lost |= gone
        return counts, lost
    if not lost:
        return Counter(outcomes.results), lost
    ended = zip(outcomes.ids, outcomes.results, strict=True)
    return Counter(result for id_, result in ended if id_ not in lost), lost


def _apart(refused: Outcomes, error: Exception) -> list[Outcomes]:
    """Return the halves of what one call refused, in the end with `failed` instead of the outcome that was meant."""
    columns = (refused.ids, refused.results, refused.details, refused.outputs)
    middle = len(refused.ids) // 2
    if middle:
        return [Outcomes(*(column[half] for column in columns)) for half in (slice(middle), slice(middle, None))]  # type: ignore[arg-type]
    if refused.outputs == [None]:
        raise error  # it was replaced before: the refusal is not about the output
    reason = "its output is not JSON that PostgreSQL can store. Give text such as to_json makes."
    if "bytes" in str(error):
        reason = f"its output is too large: {error}"
    log.warning("message %s ends as failed, not as %s: %s", refused.ids[0], refused.results[0], reason)
    return [Outcomes(refused.ids, ["failed"], [reason], [None])]


def archive(conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, handled_by: str | None) -> list[int]:
    """Archive messages in one call, and return the ids of the lost; InvalidMessage or InvalidArgument for an output."""
    return run(
        conn,
        verbs.archive_rows(
            lock_token,
            outcomes.ids,
            results=None if outcomes.results.count("success") == len(outcomes.ids) else outcomes.results,
            details=_unless_empty(outcomes.details),
            outputs=_unless_empty(outcomes.outputs),
            handled_by=handled_by,
        ),
    )


def _unless_empty(column: list[str | None]) -> list[str | None] | None:
    return None if column.count(None) == len(column) else column
