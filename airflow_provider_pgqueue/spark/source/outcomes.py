"""Reads outcomes from a table with a row for each message, which the function of a drain or a stream gives."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from airflow_provider_pgqueue.core.client import JsonText
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Rejected, Retry, Success, storable

log = logging.getLogger(__name__)

RESULTS: Final = ("success", "rejected", "failed", "retry")
_LONGEST_DELAY: Final = timedelta(days=366)
_LARGEST_OUTPUT: Final = 65536  # bytes of its text, as the archive counts them
_LARGEST_SCALE: Final = 16383  # digits after the point, of PostgreSQL's numeric
_NUL: Final = re.compile(r"(?<!\\)(\\\\)*\\u0000")

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


def parse_outcomes(rows: pa.Table | pa.RecordBatch, *, giver: str) -> Iterator[tuple[int, Outcome]]:
    """Give the id and the outcome of each row; only `id` is needed, no result is success, other columns are ignored.

    An outcome that cannot be kept makes its own message `failed`, with the reason in its details and in the log: an
    `output` that is not JSON or is too large, or a `delay_seconds` out of range. A retry keeps no output, and only a
    retry has a delay. A column of another type or a result that does not exist is a mistake in all rows: it is an
    InvalidArgument.

    :param giver: who gave the rows, for errors: "the function".
    """
    known = [name for name in COLUMNS if name in rows.schema.names]
    for name in known:
        accepted, cure = _ACCEPTED[name]
        kind = rows.schema.field(name).type
        if not any(accepts(kind) for accepts in accepted):
            raise InvalidArgument(f"{giver} gave the column {name} as {kind}. Give {cure}.")
    for row in rows.select(known).to_pylist():
        if row["id"] is None:
            raise InvalidArgument(f"{giver} gave a row without an id. Keep the id of each message.")
        yield row["id"], _outcome(giver, **row)


def _outcome(
    giver: str,
    id: int,
    result: str | None = None,
    details: str | None = None,
    output: str | None = None,
    delay_seconds: float | None = None,
) -> Outcome:
    result = result or "success"
    if result not in RESULTS:
        raise InvalidArgument(f"{giver} gave the result {result[:20]!r}. Give one of {', '.join(RESULTS)}.")
    reason = None if details is None else storable(details)
    try:
        if result == "retry":
            return Retry(_delay(delay_seconds), reason)
        kept = None if output is None else _output(output)
        if result == "rejected":
            return Rejected(reason or f"rejected by {giver}", kept)
        if result == "failed":
            return Failed(reason or f"failed, says {giver}", output=kept)
        return Success(reason, kept)
    except InvalidArgument as error:
        log.warning("message %s ends as failed, not as %s: %s", id, result, error)
        return Failed(str(error))


def _delay(seconds: float | None) -> timedelta | None:
    # pandas says NaN where there is nothing, and Spark for 0.0 / 0.0 and for a text that is not a number.
    if seconds is None or math.isnan(seconds):
        return None
    if not 0 <= seconds <= _LONGEST_DELAY.total_seconds():
        raise InvalidArgument(f"delay_seconds is {seconds}. Give 0 to 366 days, or none for the back-off of the queue.")
    return timedelta(seconds=float(seconds))


def _output(text: str) -> JsonText:
    try:
        size = math.inf if _NUL.search(text) else _size(text)
    except (ValueError, RecursionError):
        size = math.inf
    if size == math.inf:
        raise InvalidArgument("its output is not JSON that PostgreSQL can store. Give text such as to_json makes.")
    if size > _LARGEST_OUTPUT:
        raise InvalidArgument(
            f"its output has {size} bytes. Give at most {_LARGEST_OUTPUT}; keep large results elsewhere and say where."
        )
    return JsonText(text)


def _size(text: str) -> int:
    """Return how many bytes the text has as PostgreSQL writes it, which keeps each digit and has no exponents."""
    fractions: list[str] = []

    def fraction(token: str) -> str:
        number = Decimal(token)
        if number.adjusted() > _LARGEST_OUTPUT or -int(number.as_tuple().exponent) > _LARGEST_SCALE:
            raise ValueError("out of range")
        fractions.append(f"{number:f}")
        return ""

    value = json.loads(text, parse_float=fraction, parse_constant=_refuse)
    size = len(json.dumps(value, ensure_ascii=False).encode())
    return size + sum(len(found) - len('""') for found in fractions)


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not JSON")
