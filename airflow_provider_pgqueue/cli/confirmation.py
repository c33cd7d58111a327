"""Asks before something is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from airflow_provider_pgqueue.cli.text import printable

F = TypeVar("F", bound=Callable[..., Any])


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
