"""Durations on the command line: `90s`, `10m`, `2h`, `1d`, `1h30m`, or ISO 8601."""

from __future__ import annotations

from datetime import timedelta

import click

from airflow_provider_pgqueue.core.duration import parse_duration


def duration(text: str) -> timedelta:
    """Convert an option; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
