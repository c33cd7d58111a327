"""Reads outcomes from a table with a row for each message, which the function of a drain or a stream gives."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.outcome import Retry
from airflow_provider_pgqueue.core.settlement import Outcomes

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
