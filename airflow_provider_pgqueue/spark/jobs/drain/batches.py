"""A user's function over batches of messages: what it gets, what it may return, how one bad message stands alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.source.outcomes import COLUMNS, RESULTS, Outcomes, parse_outcomes

log = logging.getLogger(__name__)

Form = Literal["arrow", "pandas"]
BatchFunction = Callable[[Any], Any]

MESSAGES: Final = pa.schema(
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


@dataclass(frozen=True, slots=True)
class Batches:
    """Calls a function with a table of messages, and reads what it returns.

    :param caller: raises TimeIsUp when a call takes longer than its limit for each message; None sets no limit.
    """

    function: BatchFunction
    form: Form
    caller: Caller | None

    def outcomes(self, table: pa.Table) -> Outcomes:
        """Return the outcome of each message; InvalidArgument for something unusable, else what the function raises."""
        try:
            asked = table.to_pandas() if self.form == "pandas" else table
            returned = self.caller.call(self.function, asked, len(table)) if self.caller else self.function(asked)
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
            f"the DataFrame that the function returned is no table ({type(error).__name__}). "
            "Give each column one type: whole numbers as id, text as result, details and output."
        ) from None
