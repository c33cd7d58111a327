"""Reads outcomes from the table with a row for each message that the function of a drain returns."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.json_text import JsonText
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Outcomes, Rejected, Retry, Success

log = logging.getLogger(__name__)

_NOT_JSON: Final = "its output is not JSON that PostgreSQL can store. Give text such as to_json makes."
RESULTS: Final = ("success", "rejected", "failed", "retry")
_LONGEST_DELAY: Final = timedelta(days=366)
_JSON: Final = json.JSONDecoder(parse_int=float)  # an int of more than 4,300 digits would be refused

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
    """Return what a function returned as the outcome of each message; InvalidArgument says what is wrong with it.

    None is success for all. Else a pyarrow.Table, a RecordBatch or a pandas.DataFrame with the columns `id` and
    `result`, and if wanted `details`, `output` (JSON) and `delay_seconds` (with retry; without it the
    back-off of the queue). A message that it leaves out is a success. A retry keeps no output, and only a retry has a
    delay; one out of range, or an output that is not JSON, makes its own message `failed`, with the reason in its
    details and in the log.
    """
    outcomes: Outcomes = dict.fromkeys(ids)
    if returned is None:
        return outcomes
    rows = _as_table(returned)
    _check_columns(rows)
    columns = rows.to_pydict()
    if unknown := set(columns["result"]) - set(RESULTS):
        raise InvalidArgument(f"the function gave the result {min(unknown)[:20]!r}. Give one of {', '.join(RESULTS)}.")
    said = (columns.get(name, repeat(None)) for name in COLUMNS)
    given = {id_: _outcome(id_, *rest) for id_, *rest in zip(*said, strict=False)}
    if len(given) < len(rows):
        raise InvalidArgument("the function gave two rows for one message. Give one row a message.")
    if strangers := sorted(given.keys() - outcomes.keys()):
        raise InvalidArgument(f"the function gave outcomes for messages that it did not get: {strangers[:10]}")
    return outcomes | given


def _check_columns(rows: pa.Table) -> None:
    names = rows.column_names
    if unknown := sorted(set(names) - set(COLUMNS)):
        raise InvalidArgument(f"the function gave the columns {unknown}. Known are {', '.join(COLUMNS)}.")
    if len(set(names)) < len(names) or not {"id", "result"} <= set(names):
        raise InvalidArgument(f"the function gave the columns {names}. Give id and result, each column once.")
    if rows.column("result").null_count:
        raise InvalidArgument(f"the function gave a row without a result. Give one of {', '.join(RESULTS)}.")
    for name, kind in zip(rows.schema.names, rows.schema.types, strict=True):
        accepted, fix = _ACCEPTED[name]
        if not any(accepts(kind) for accepts in accepted):
            raise InvalidArgument(f"the function gave the column {name} as {kind}. Give {fix}.")
    if rows.column("id").null_count:
        raise InvalidArgument("the function gave a row without an id. Keep the id of each message.")


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


def _outcome(id_: int, result: str, details: str | None, output: str | None, seconds: Any) -> Outcome | None:
    if result == "retry":
        return _retry(id_, seconds, details)
    kept = None
    if output is not None:
        if not _is_json(output):
            return _failed_instead(id_, result, _NOT_JSON)
        kept = JsonText(output)
    if result == "rejected":
        return Rejected(details or "rejected by the function", kept)
    if result == "failed":
        return Failed(details or "failed, says the function", output=kept)
    return None if details is None and kept is None else Success(details, kept)


def _is_json(text: str) -> bool:
    """Return whether a text is one JSON value, so that it cannot reach into the outcome of another message.

    PostgreSQL checks the rest: NUL, numbers out of its range, NaN.
    """
    text = text.strip(" \t\n\r")
    try:
        return _JSON.raw_decode(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def _retry(id_: int, seconds: Any, reason: str | None) -> Retry | Failed:
    # pandas says NaN where there is nothing, and Spark for 0.0 / 0.0 and for a text that is not a number.
    if seconds is None or math.isnan(seconds):
        return Retry(None, reason)
    if 0 <= seconds <= _LONGEST_DELAY.total_seconds():
        return Retry(timedelta(seconds=float(seconds)), reason)
    error = f"delay_seconds is {seconds}. Give 0 to 366 days, or none for the back-off of the queue."
    return _failed_instead(id_, "retry", error)


def _failed_instead(id_: int, meant: str, reason: str) -> Failed:
    """Return the outcome of a message whose own cannot be kept, and log the reason."""
    log.warning("message %s ends as failed, not as %s: %s", id_, meant, reason)
    return Failed(reason)
