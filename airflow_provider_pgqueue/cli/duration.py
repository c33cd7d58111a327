"""Durations on the command line: `90s`, `10m`, `2h`, `1d`, `1h30m`, or ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from airflow_provider_pgqueue.core.duration import parse_duration


def duration(text: str) -> timedelta:
    """Convert an option; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def before(now: datetime, age: timedelta | None) -> datetime | None:
    """Return the moment so long before now, or the first that there is; None for no duration."""
    try:
        return None if age is None else now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
