"""Converts bodies, headers and outputs to and from JSON text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import date, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from airflow_provider_pgqueue.core.errors import InvalidMessage
from airflow_provider_pgqueue.core.message import Unreadable

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_LONGEST_PATH: Final = 200
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class JsonText(str):
    """A body that is JSON text already. It is sent unchanged, so that no number loses a digit.

    It is not checked: make one only of valid JSON.
    """

    __slots__ = ()


def _as_text(value: Any) -> str:
    """Return the text of a value that JSON has no type for, with all its digits."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError("Out of range float values are not JSON compliant")
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_JSON_LITERALS: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_text)


def to_json(body: Any) -> str:
    """Return a body as JSON text; InvalidMessage gives the reason, but not the body, if that is impossible.

    A datetime, date or time becomes its ISO text, a UUID or Decimal its text, with all digits.
    """
    if isinstance(body, JsonText):
        return str(body)
    try:
        text = _JSON_LITERALS.encode(body)
        # The encoder passes lone surrogates, which no connection can send.
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the value has half of a surrogate pair{_place(body)}", "Publish text that is valid Unicode."
        ) from error
    except ValueError as error:
        text = str(error)  # after a colon, the value
        if "Circular" in text:
            raise InvalidMessage("the value is not JSON: it contains itself", "Break the cycle.") from error
        if "float" in text:
            problem = f"the value is not JSON: it has NaN or Infinity{_place(body)}"
            raise InvalidMessage(problem, "Give None or a text in its place.") from error
        raise InvalidMessage(
            f"the value is not JSON: {text.partition(':')[0]}{_place(body)}", "Give a long number as a text."
        ) from error
    except TypeError as error:
        raise InvalidMessage(
            f"the value is not JSON: {error}{_place(body)}",
            "Convert it to a text, number, bool, None, list, dict, datetime or UUID.",
        ) from error
    except RecursionError as error:
        raise InvalidMessage("the value is nested too deep. Flatten it.") from error
    except Exception as error:
        # A value of a class that computes what it holds, such as a row of a closed session.
        raise InvalidMessage(f"the value is not JSON: to convert it raised {type(error).__name__}.") from error
    return text


def all_to_json(bodies: Iterable[Any]) -> Iterator[str]:
    """Yield bodies as `to_json` does; InvalidMessage also says which one it is about."""
    for number, body in enumerate(bodies):
        try:
            text = to_json(body)
        except InvalidMessage as error:
            error.at(f"messages[{number}]")
            raise
        yield text


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or an Unreadable if Python cannot read it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # PostgreSQL takes numbers of any length and nests thousands deep. The texts of both errors quote nothing.
        return Unreadable(f"{type(error).__name__}: {error}")


def has_nul(text: str) -> bool:
    """Return whether a JSON text has a NUL in a string or key, which the database refuses to store."""
    return "\\u0000" in text and _NUL.search(text) is not None


def _place(body: Any) -> str:
    """Return where in a body the first part is that is not JSON: `, at .lines[3].price`; nothing if it is all of it.

    A key that is not a plain name may be private data, so its number stands for it.
    """
    path = ""
    while len(path) < _LONGEST_PATH and (found := next(filter(_is_refused, _parts(body)), None)):
        step, body = found
        path += step
    return path and f", at {path}"


def _parts(body: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(body, dict):
        for number, (key, value) in enumerate(body.items()):
            yield (f".{key}" if isinstance(key, str) and _PLAIN.fullmatch(key) else f".(key {number + 1})"), value
    elif isinstance(body, list | tuple):
        for number, value in enumerate(body):
            yield f"[{number}]", value


def _is_refused(part: tuple[str, Any]) -> bool:
    try:
        _JSON_LITERALS.encode(part[1]).encode()
    except Exception:
        return True
    return False
