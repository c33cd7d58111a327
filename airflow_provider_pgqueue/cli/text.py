"""Everything that a command prints, fit for a terminal: bodies, references and reasons may hold anything."""

from __future__ import annotations

import json
import sys

import click

from airflow_provider_pgqueue.core.unseen import replace_unseen


def print_text(text: str, *, err: bool = False) -> None:
    """Print lines, on standard output or standard error; OSError if that cannot be written."""
    # Given no stream, click writes UTF-8 to one that is ASCII.
    click.echo(printable_lines(text), file=sys.stderr if err else sys.stdout)


def printable(text: str) -> str:
    """Return the text with all that a reader would not see escaped as in JSON, so that JSON keeps its meaning."""
    return replace_unseen(text, lambda letter: json.dumps(letter)[1:-1])


def printable_lines(text: str) -> str:
    """Return the text as `printable` does, with its lines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(text: str) -> str:
    """Return the text in one printable line."""
    return printable(" ".join(text.split()))
