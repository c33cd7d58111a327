"""The messages of a batch as a table, in the hands of a function: leased and renewed, or locked; settled by columns."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, LeaseLost, PgQueueError, translate
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.spark.source.outcomes import COLUMNS, RESULTS, Outcomes, parse_outcomes, settle

log = logging.getLogger(__name__)

BatchFunction = Callable[[Any], Any]

_MESSAGES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("message", pa.string()),
        ("reference", pa.string()),
        ("attempts", pa.int32()),
        ("headers", pa.string()),
        ("topic", pa.string()),
        ("group_key", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
_MAX_ATTEMPTS: Final = len(_MESSAGES)  # of the columns of a query
_TOKEN: Final = _MAX_ATTEMPTS + 1


class Held:
    """Messages that are leased or locked; `lock_token` is the right to finish them."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._columns = list(zip(*rows, strict=True))
        self.lock_token: UUID = rows[0][_TOKEN]
        self.max_attempts: int = rows[0][_MAX_ATTEMPTS]
        self.ids: list[int] = list(self._columns[0])

    @cached_property
    def table(self) -> pa.Table:
        """What a function gets."""
        # When it is asked for, and the lease is renewed by then: the first one imports for as long as a lease may last.
        return pa.table(self._columns[: len(_MESSAGES)], schema=_MESSAGES)


def held(conn: psycopg.Connection[Any], name: str, arguments: Mapping[str, Any]) -> Held | None:
    """Lease or lock by a query of sql/queries; None if nothing was ready.

    JSON comes as its text and by columns: an object for each message would cost more than the server does.
    """
    try:
        with conn.cursor(row_factory=tuple_row, binary=True) as cursor:
            rows = cursor.execute(query(name), arguments).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return Held(rows) if rows else None


class TableLease:
    """Holds leased messages: `renew` is for a Renewal, and what is not settled is given back."""

    def __init__(self, conn: psycopg.Connection[Any], messages: Held, *, lease_for: timedelta, handled_by: str) -> None:
        self.messages = messages
        self._conn = conn
        self._lease_for = lease_for
        self._handled_by = handled_by
        self.held = set(messages.ids)
        self._calling = threading.Lock()

    def renew(self) -> None:
        """Extend what is still held, and log a warning instead of raising if that fails or messages were lost."""
        # A renewal during another call would find what that settles gone, and call it lost.
        with self._calling:
            try:
                if self.held:
                    run(self._conn, verbs.extend(self.messages.lock_token, self.held, lease_for=self._lease_for))
            except LeaseLost as error:
                log.warning("%s; another consumer may have them now", error.problem)
            except (PgQueueError, psycopg.Error) as error:
                log.warning("could not extend the lease of %s: %s", quantity(len(self.held)), type(error).__name__)

    def let_expire(self, ids: list[int]) -> None:
        """Renew messages no longer, and leave them to the end of their lease: the attempt counts."""
        self.held.difference_update(ids)

    def settle(self, outcomes: Outcomes) -> Counter[str]:
        """Give messages their outcomes, and return how many ended how; those that were lost are delivered again."""
        with self._calling:
            counts, lost = settle(self._conn, self.messages.lock_token, outcomes, handled_by=self._handled_by)
            self.held.difference_update(outcomes.ids, outcomes.retries)
        if lost:
            log.warning("%s; they are delivered again", LeaseLost(lost).problem)
        again = counts.pop("retry", 0)
        last = self._out_of_attempts(outcomes) if again else 0
        return counts + Counter(retried=again - last, failed=last)

    def _out_of_attempts(self, outcomes: Outcomes) -> int:
        """Count the retries after a last attempt, which are archived as failed instead."""
        attempts = dict(zip(self.messages.ids, self.messages.table.column("attempts").to_pylist(), strict=True))
        most = self.messages.max_attempts
        return sum(retry.count_attempt and attempts[id_] >= most for id_, retry in outcomes.retries.items())

    def give_back(self, *, count_attempt: bool = False) -> int:
        """Release what is still held, and return how many those were."""
        with self._calling:
            ids, self.held = self.held, set()
            if ids:
                try:
                    run(self._conn, verbs.release(self.messages.lock_token, ids, count_attempt=count_attempt))
                except LeaseLost as error:
                    log.debug("%s", error)
        return len(ids)


@dataclass(frozen=True, slots=True)
class Batches:
    """Calls a function with a table of messages, and reads what it returns.

    :param caller: raises TimeIsUp when a call takes longer than its limit for each message; None sets no limit.
    """

    function: BatchFunction
    caller: Caller | None

    def outcomes(self, table: pa.Table) -> Outcomes:
        """Return the outcome of each message; InvalidArgument for something unusable, else what the function raises."""
        try:
            returned = self.caller.call(self.function, table, len(table)) if self.caller else self.function(table)
        except TimeIsUp:
            raise
        except Exception as error:
            raise Raised(error) from error
        return outcomes_of(returned, table.column("id").to_pylist())

    def pieces(self, table: pa.Table) -> Iterator[tuple[pa.Table, Outcomes | Exception]]:
        """Give the batch in one piece or several, each with its outcomes; what it raises stands alone with its message.

        A function that raises is called again with each half of the batch, until the message that it raises on stands
        alone: its neighbours are not touched by it. So the function sees the neighbours again, about log2 of the batch
        times for one bad message. A piece on which its time is up comes with TimeIsUp, whole.
        """
        waiting = [table]
        while waiting:
            piece = waiting.pop()
            try:
                outcomes: Outcomes | Exception = self.outcomes(piece)
            except TimeIsUp as error:
                outcomes = error
            except Raised as raised:
                if len(piece) > 1:
                    middle = len(piece) // 2
                    log.debug("the function raised %r on %s: halving them", raised, quantity(len(piece)))
                    waiting += [piece.slice(middle), piece.slice(0, middle)]
                    continue
                outcomes = raised.error
            yield piece, outcomes


class Raised(Exception):
    """The function raised an `error`, and not whoever read what it returned. Its text names the class alone."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.error = error


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
    if len(given) < len(found.ids) + len(found.retries) or (returned is not None and len(given) < len(rows)):
        raise InvalidArgument("the function gave two rows for one message. Give one row a message.")
    if strangers := sorted(given.difference(ids)):
        raise InvalidArgument(f"the function gave outcomes for messages that it did not get: {strangers[:10]}")
    found.add_success([id_ for id_ in ids if id_ not in given] if given else ids)
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
