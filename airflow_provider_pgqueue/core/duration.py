"""Durations: as arguments in Python, and as text: `90s`, `10m`, `2h`, `1d`, `1h30m`, or ISO 8601."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

Duration = timedelta | float
"""What arguments that are durations take: a timedelta, or a number of seconds."""

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORT = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_NUMBER = r"(?:(\d+(?:\.\d+)?)%s)?"
# Years and months have no length of their own.
_ISO = re.compile(
    rf"P(?=.){_NUMBER % 'W'}{_NUMBER % 'D'}(?:T(?=.){_NUMBER % 'H'}{_NUMBER % 'M'}{_NUMBER % 'S'})?", re.ASCII
)


def as_timedelta(value: Any) -> timedelta:
    """Return a `Duration` as a timedelta; ValueError, with the fix, for anything else."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return timedelta(seconds=value)
    raise ValueError("Give a timedelta or a number of seconds.")


def seconds(value: Duration) -> float:
    """Return a `Duration` as a number of seconds, which JSON has."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def parse_duration(text: str) -> timedelta:
    """Return a duration such as `90s`, `1h30m` or `PT10M`; ValueError, with the valid forms, for anything else."""
    try:
        if text == "0":
            return timedelta(0)
        if _SHORT.fullmatch(text):
            return sum((timedelta(seconds=float(n) * _SECONDS[unit]) for n, unit in _PART.findall(text)), timedelta(0))
        if iso := _ISO.fullmatch(text):
            weeks, days, hours, minutes, rest = (float(number or 0) for number in iso.groups())
            return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=rest)
    except OverflowError:
        raise ValueError(f"{text!r} is too long a duration.") from None
    raise ValueError(f"{text!r} is not a duration. Write 90s, 10m, 2h, 1d, 1h30m, or ISO 8601 such as PT10M.")


def duration_text(value: timedelta) -> str:
    """Return a duration of at least 0 as `parse_duration` reads it: `1h30m`."""
    seconds = value.total_seconds()
    parts = []
    for unit in ("d", "h", "m"):
        whole, seconds = divmod(seconds, _SECONDS[unit])
        parts += [f"{whole:.0f}{unit}"] if whole else []
    return "".join(parts + ([f"{seconds:g}s"] if seconds or not parts else []))
