"""Everything that a command prints, fit for a terminal: bodies, references and reasons may hold anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import click

from airflow_provider_pgqueue.core.unseen import replace_unseen

_BARS: Final = " ▁▂▃▄▅▆▇█"


def say(text: str, *, err: bool = False) -> None:
    """Print lines, on standard output or standard error; OSError if that cannot be written."""
    click.echo(printable_lines(text), err=err)


def printable(text: str) -> str:
    """Return the text with all that a reader would not see escaped as in JSON, so that JSON keeps its meaning."""
    return replace_unseen(text, lambda letter: json.dumps(letter)[1:-1])


def printable_lines(text: str) -> str:
    """Return the text as `printable` does, with its lines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(text: str) -> str:
    """Return the text in one printable line."""
    return printable(" ".join(text.split()))


def sparkline(numbers: Sequence[int | None]) -> str:
    """Return a bar for each number, the largest one full; a dot where the number is not known."""
    most = max((number for number in numbers if number), default=0)
    return "".join("·" if number is None else _bar(number, most) for number in numbers)


def _bar(number: int, most: int) -> str:
    # Whatever is there at all is seen.
    return _BARS[0 if number <= 0 else max(1, number * (len(_BARS) - 1) // most)]
