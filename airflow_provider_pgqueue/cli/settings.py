"""The options of every command: the database and the form of the output."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The options that all commands share; given before or after the name of the command, the last one counts."""

    dsn: str = field(default_factory=lambda: os.environ.get("PGQUEUE_DSN", ""), repr=False)
    as_json: bool = False
    debug: bool = False


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.ensure_object(Settings), str(parameter.name), value)


_OPTIONS = (
    click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=_keep,
        help="Connection string or URL. Default: $PGQUEUE_DSN, else libpq's own PGHOST, PGDATABASE, PGSERVICE, …",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        expose_value=False,
        callback=_keep,
        help="Print JSON: one object, or one per line from commands that keep running.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_keep,
        help="Show the traceback of an error, for a bug report.",
    ),
)


def shared_options(command: F) -> F:
    """Add the options that all commands share to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command, and give it the settings that they make."""
    return shared_options(click.make_pass_decorator(Settings, ensure=True)(command))
