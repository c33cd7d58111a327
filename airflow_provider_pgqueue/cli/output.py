"""Prints what a command found: a table or a sentence for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import click

from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.cli.text import print_text, printable
from airflow_provider_pgqueue.core.message import COUNTED, QueueStatus
from airflow_provider_pgqueue.core.quantity import per_second, size

Row = Mapping[str, Any]
_NARROW = 16  # letters of a column, which are enough to read a longer text in
_WIDE = 100_000  # no terminal: nothing is cut


def show(settings: Settings, value: Row, text: str) -> None:
    """Print one result: the sentence, or the object."""
    print_text(to_text(value) if settings.as_json else printable(text))


class DoneUnsaid(click.ClickException):
    """A command has done its work, and what it printed could not be written: to repeat it would do it twice."""

    exit_code = 3

    def __init__(self, done: str, error: OSError) -> None:
        why = error.strerror or type(error).__name__
        super().__init__(f"the output cannot be written ({why}). The command is done, do not repeat it: {done}")


def show_done(settings: Settings, value: Row, text: str) -> None:
    """Print what was changed; DoneUnsaid, with the sentence, if that cannot be written."""
    try:
        show(settings, value, text)
    except OSError as error:
        raise DoneUnsaid(printable(text), error) from error


def show_rows(
    settings: Settings, name: str, rows: Sequence[Row], columns: Sequence[str], absent: Mapping[str, str] = {}
) -> None:
    """Print rows: a table of `columns`, or one object that has all of them under `name`.

    :param absent: what people read where a column has no value, instead of a dash.
    """
    if settings.as_json:
        print_text(to_text({name: rows}))
    elif rows:
        made = console()
        made.print(fitting(rows, columns, made.width, absent))
    else:
        print_text(f"no {name}")


def show_line(settings: Settings, value: Row, text: str) -> None:
    """Print one line of a stream at once."""
    show(settings, value, text)
    sys.stdout.flush()


def to_text(value: Any) -> str:
    """Return JSON in one line: times in ISO 8601, durations in seconds."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def console(*, stderr: bool = False) -> Any:
    """Return a Rich console: as wide as the terminal, or without limit where there is none."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def fitting(rows: Sequence[Row], columns: Sequence[str], width: int, absent: Mapping[str, str] = {}) -> Any:
    """Return a table; where its columns would be too narrow to be read, a line for each value instead, as psql does."""
    from rich.text import Text

    cells = [[(name, _cell(name, row[name], absent)) for name in columns] for row in rows]
    needed = [max([len(name), *(min(len(row[at][1]), _NARROW) for row in cells)]) for at, name in enumerate(columns)]
    if sum(needed) + 2 * (len(columns) - 1) <= width:
        return table(rows, columns, absent)
    longest = max(map(len, columns))
    return Text("\n\n".join("\n".join(f"{name:{longest}}  {said}" for name, said in row) for row in cells))


def table(rows: Sequence[Row], columns: Sequence[str], absent: Mapping[str, str]) -> Any:
    """Return a Rich table; numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_number = all(isinstance(row[name], int | float | timedelta | None) for row in rows)
        made.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(_cell(name, row[name], absent)) for name in columns))
    return made


def _cell(name: str, value: Any, absent: Mapping[str, str]) -> str:
    if value is None:
        return absent.get(name, cell(None))
    if name.endswith("_rate"):
        return per_second(value)
    return size(value) if name.endswith("_bytes") else cell(value)


def cell(value: Any) -> str:
    """Return a value as people read it, without anything that could steer their terminal."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return span(value)
        case datetime():
            return value.astimezone().isoformat(sep=" ", timespec="seconds")
        case float():
            return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"
        case dict() | list():
            return printable(to_text(value))
    return printable(str(value))


def span(duration: timedelta) -> str:
    """Return a duration in its largest two units: `3d 4h`, `2m 5s`, `0.25s`."""
    seconds = duration.total_seconds()
    if abs(seconds) < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    sign, rest = ("-" if seconds < 0 else ""), int(abs(seconds))
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, rest = divmod(rest, length)
        if number:
            parts.append(f"{number}{unit}")
    return sign + " ".join(parts[:2])


def records(values: Sequence[Any]) -> list[Row]:
    """Return dataclasses of the queue as rows."""
    return [asdict(value) for value in values]


def status_rows(queues: Sequence[QueueStatus]) -> list[Row]:
    """Return the numbers of queues as rows, in which people see a `+` after what is more than was counted."""
    return [asdict(queue) | {name: queue.seen(name) for name in COUNTED} for queue in queues]


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case Decimal():
            return float(value)
    return str(value)
