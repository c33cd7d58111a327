"""Reads JSON, of lines and of options, and checks it before it is published, so that an error can name its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from airflow_provider_pgqueue.core.errors import InvalidMessage
from airflow_provider_pgqueue.core.json_text import JsonText, has_nul, to_json


@dataclass(frozen=True, slots=True)
class Line:
    """One body as it was written, so that no digit of a number is lost, and its parsed value for the keys in it."""

    place: str
    text: JsonText
    body: Any

    def key(self, name: str) -> str:
        """Return the value of a field as text; InvalidMessage if there is none that can be a key."""
        value = self.body.get(name) if isinstance(self.body, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return json.dumps(value)
        raise InvalidMessage(f"{self.place}: the field {name!r} is not a string or a number. Give it one.")


def read_lines(source: Iterable[bytes]) -> Iterator[Line]:
    """Yield the JSON lines of a source, without empty ones; InvalidMessage names the first line that is not JSON."""
    for number, raw in enumerate(source, 1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip(" \t\r\n")
        except UnicodeDecodeError:
            raise InvalidMessage(f"line {number} is not UTF-8. Convert the file, for example with iconv.") from None
        if text:
            yield parse(text, f"line {number}", fix="Write one JSON value on each line.")


def parse(text: str, place: str, *, fix: str = "Quote it for the shell: '{\"order_id\": 7}'.") -> Line:
    """Return one body; InvalidMessage names the place, such as an option, and the column, not the content."""
    try:
        body = json.loads(text, parse_constant=_refuse)
        if "\\u" in text and has_nul(to_json(body)):
            raise InvalidMessage("\\u0000 cannot be stored. Remove it.")
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise InvalidMessage(f"{place} is not JSON: {error.msg} at {where}. {fix}") from None
    except InvalidMessage as error:
        raise InvalidMessage(f"{place}: {error}") from None
    except RecursionError:
        raise InvalidMessage(f"{place} is nested too deep. Flatten it.") from None
    except ValueError:
        raise InvalidMessage(f"{place} has a number that is too long. Write it as a string.") from None
    return Line(place, JsonText(text), body)


def read_message(given: str) -> Line:
    """Return the body that option --message gives, as it was written; - is all of standard input.

    InvalidMessage does not show the content.
    """
    if given != "-":
        return parse(given, "--message")
    if sys.stdin is None:  # closed by the shell
        raise click.UsageError("standard input is closed. Give the body to --message.")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig").strip(" \t\r\n")
    except UnicodeDecodeError:
        raise InvalidMessage("--message is not UTF-8. Convert the file, for example with iconv.") from None
    return parse(text, "--message", fix="Write one JSON value.")


def json_object(text: str) -> dict[str, Any]:
    """Convert an option that is a JSON object."""
    try:
        found = json.loads(text)
        to_json(found)
    except InvalidMessage as error:
        raise click.BadParameter(str(error)) from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter("It is not a JSON object.")
    return found


def _refuse(constant: str) -> NoReturn:
    raise InvalidMessage(f"{constant} is not JSON. Replace NaN and Infinity.")
