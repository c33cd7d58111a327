"""The options of a stream, checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from airflow_provider_pgqueue.core.errors import InvalidArgument


def number(options: Mapping[str, str], name: str, default: int, *, at_most: int = 2**31 - 1) -> int:
    """Return a whole number of at least 1."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= at_most):
        raise InvalidArgument(f"option {name} is {text[:50]!r}. Give a whole number from 1 to {at_most}.")
    return int(text)


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"option {name} is {text[:50]!r}. Give true or false.")
    return text == "true"


def names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return what stands between commas; empty if the option is not given."""
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def seconds(options: Mapping[str, str], name: str) -> timedelta | None:
    """Return a duration given in seconds; None if it is not given."""
    return timedelta(seconds=number(options, name, 1, at_most=43200)) if name in options else None
