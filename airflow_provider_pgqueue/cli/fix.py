"""Replaces the SQL in the fix of an error by the command of this program that does the same."""

from __future__ import annotations

import logging
import re
from typing import Final

from airflow_provider_pgqueue.cli.text import printable_lines

# SQL in the fixes of the database, and the command that does the same.
_COMMANDS: Final = tuple(
    (re.compile(r"(?:SELECT (?:\* FROM )?)?messages\." + call), command)  # noqa: S608 a pattern
    for call, command in {
        r"granted_queues\(\)": "pgqueue queues",
        r"dead_causes\(\)": "pgqueue dead",
        r"create_queue\('?([^')]+)'?\)": r"pgqueue queues create \1",
        r"resume_queue\('([^']+)'\)": r"pgqueue queues resume \1",
        r"drop_queue\('([^']+)', force => true\)": r"pgqueue queues drop \1 --force",
        r"alter_queue\b(?!\()": "pgqueue queues alter",
        r"maintain\(\)": "pgqueue maintenance",
    }.items()
)


def in_commands(text: str) -> str:
    """Return the text with a command of this program in place of each SQL statement that one does."""
    for statement, command in _COMMANDS:
        text = statement.sub(command, text)
    return text


class LogFormat(logging.Formatter):
    """The lines of the log of a command that works for long, with commands in place of SQL."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable_lines(in_commands(super().format(record)))


def log_to_stderr() -> None:
    """Show the log on stderr, unless the program has set up one already."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormat("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level="INFO", handlers=[handler])
