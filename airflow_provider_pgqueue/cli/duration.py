"""Durations on the command line: `90s`, `10m`, `2h`, `1d`, `1h30m`, or ISO 8601."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from airflow_provider_pgqueue.core.duration import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def duration(text: str) -> timedelta:
    """Convert an option; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def ago(text: str) -> datetime:
    """Convert an option that is a duration to the time that long ago, or to the first that there is."""
    try:
        return datetime.now(UTC) - duration(text)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def time_options(what: str) -> Callable[[F], F]:
    """Return what adds --since and --until to a command, which gets times; `what` says of what, for the help."""
    since = click.option("--since", type=ago, metavar="DURATION", help=f"Only {what} within this time: 2h, 1d.")
    until = click.option("--until", type=ago, metavar="DURATION", help=f"Only {what} longer ago than this.")
    return lambda command: since(until(command))
