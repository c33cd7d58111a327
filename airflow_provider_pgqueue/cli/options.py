"""Arguments and options that several commands have, and the confirmation of a destructive command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from airflow_provider_pgqueue.cli.text import printable
from airflow_provider_pgqueue.core.duration import parse_duration
from airflow_provider_pgqueue.core.repair.repair import is_fingerprint

F = TypeVar("F", bound=Callable[..., Any])


def duration(text: str) -> timedelta:
    """Convert an option; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def ago(text: str) -> datetime:
    """Convert a duration to the time that long ago, or to the earliest time that there is."""
    try:
        return datetime.now(UTC) - duration(text)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def cause(text: str) -> str:
    """Return the text of an option that names a cause; click shows the name of this function, `CAUSE`, in the help."""
    if not is_fingerprint(text):
        raise click.BadParameter(f"{text[:40]!r} is not a cause. List the causes: pgqueue dead")
    return text


def time_options(what: str) -> Callable[[F], F]:
    """Return what adds --since and --until to a command, which gets times; `what` says of what, for the help."""
    since = click.option("--since", type=ago, metavar="DURATION", help=f"Only {what} within this time: 2h, 1d.")
    until = click.option("--until", type=ago, metavar="DURATION", help=f"Only {what} longer ago than this.")
    return lambda command: since(until(command))


def number_option(what: str, *, default: int = 20, most: int | None = 10_000) -> Callable[[F], F]:
    """Return what adds -n to a command: how many rows it shows."""
    kind, help_ = click.IntRange(1, most), f"How many {what} to show."
    return click.option("-n", "--number", type=kind, default=default, show_default=True, help=help_)


def yes_option(command: F) -> F:
    """Add the option --yes to a command."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user answers yes; otherwise end the command, which has changed nothing.

    Where standard input is not a terminal, --yes is needed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal: repeat the command with --yes.")
    if not click.confirm(printable(question), err=True):
        raise click.ClickException("not confirmed: nothing was changed.")
