"""A user's function over batches of messages: what it gets, what it may return, how one bad message stands alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import pyarrow as pa

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Outcome, Retry, outcome_of
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.source.outcomes import COLUMNS, RESULTS, parse_outcomes

log = logging.getLogger(__name__)

Form = Literal["arrow", "pandas"]
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


class Batches:
    """Calls a function with the messages of a lease and returns their outcomes: a `handle_batch` of a Consumer.

    A function that raises is called again with each half of the batch, until the message that it raises on stands
    alone: that one is retried or dead, its neighbours are not touched by it. So the function sees the neighbours again,
    about log2 of the batch times for one bad message. After it returned something unusable, `misuse` says what is
    wrong, nothing more is called, and the messages concerned are given back without an attempt: stop then.

    The messages must come from a session that leaves JSON as text.
    """

    def __init__(self, function: BatchFunction, form: Form) -> None:
        self._function = function
        self._form = form
        self.misuse: str | None = None

    def __call__(self, messages: Sequence[Message]) -> Mapping[int, Outcome | None]:
        """Return the outcome of each message that did not simply succeed."""
        if self.misuse is not None:
            return _given_back(messages)
        try:
            returned = self._function(self._as_asked(messages))
        except Exception as error:
            return self._without_neighbours(messages, error)
        try:
            return outcomes_of(returned, {message.id for message in messages})
        except InvalidArgument as error:
            self.misuse = str(error)
            return _given_back(messages)

    def _as_asked(self, messages: Sequence[Message]) -> Any:
        table = table_of(messages)
        return table.to_pandas() if self._form == "pandas" else table

    def _without_neighbours(self, messages: Sequence[Message], error: Exception) -> Mapping[int, Outcome | None]:
        if len(messages) == 1:
            return {messages[0].id: outcome_of(error)}
        log.debug("the function raised %s on %s: halving them", type(error).__name__, quantity(len(messages)))
        middle = len(messages) // 2
        return {**self(messages[:middle]), **self(messages[middle:])}


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Return messages as the table that a function gets; `message` and `headers` are JSON texts."""
    names = {"message": "body"}
    columns = {name: [getattr(each, names.get(name, name)) for each in messages] for name in _MESSAGES.names}
    return pa.table(columns, schema=_MESSAGES)


def _given_back(messages: Sequence[Message]) -> dict[int, Outcome | None]:
    return {message.id: Retry(timedelta(0), count_attempt=False) for message in messages}


def outcomes_of(returned: Any, ids: set[int]) -> dict[int, Outcome | None]:
    """Return what a function returned as outcomes by id; InvalidArgument says what is wrong with it.

    None is success for all. Else a pyarrow.Table, a RecordBatch or a pandas.DataFrame with the columns `id` and
    `result`, and if wanted `details`, `output` (JSON) and `delay_seconds` (with retry; without it the
    back-off of the queue). A message that it leaves out is a success, one whose outcome cannot be kept is `failed`.
    """
    if returned is None:
        return {}
    rows = _as_table(returned)
    names = rows.column_names
    if unknown := sorted(set(names) - set(COLUMNS)):
        raise InvalidArgument(f"the function gave the columns {unknown}. Known are {', '.join(COLUMNS)}.")
    if len(set(names)) < len(names) or not {"id", "result"} <= set(names):
        raise InvalidArgument(f"the function gave the columns {names}. Give id and result, each column once.")
    if rows.column("result").null_count:
        raise InvalidArgument(f"the function gave a row without a result. Give one of {', '.join(RESULTS)}.")
    given = list(parse_outcomes(rows, giver="the function"))
    found: dict[int, Outcome | None] = dict(given)
    if len(found) < len(given):
        raise InvalidArgument("the function gave two rows for one message. Give one row a message.")
    if strangers := sorted(set(found) - ids):
        raise InvalidArgument(f"the function gave outcomes for messages that it did not get: {strangers[:10]}")
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
