"""Reads the fields of forms and addresses, which strangers may write too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgqueue.core.duration import parse_duration
from airflow_provider_pgqueue.core.errors import InvalidArgument

Form = Mapping[str, str]


def text(form: Form, name: str) -> str | None:
    """Return what was written in a field, None if it is empty; InvalidArgument for what no column takes."""
    written = form.get(name, "").strip()
    if "\0" in written or len(written) > 1000:
        raise InvalidArgument(f"{name} has a NUL, or more than 1000 characters", "Shorten it, and leave NUL out.")
    return written or None


def moment(form: Form, name: str) -> str | None:
    """Return a time of a form, which is UTC unless it says otherwise."""
    if (written := text(form, name)) is None:
        return None
    try:
        found = datetime.fromisoformat(written)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        fix = "Give a time in UTC, such as 2026-01-31T18:00."
        raise InvalidArgument(f"{name} is {written[:40]!r}", fix) from None


def value(name: str, written: str, kind: str) -> Any:
    """Return what was written in a field as a verb takes it; InvalidArgument if no column of this type takes it."""
    match kind:
        case "text":
            return written
        case "interval":
            try:
                return f"{parse_duration(written or '0').total_seconds()} seconds"
            except ValueError as error:
                raise InvalidArgument(f"{name}: {error}") from None
    # No number of a policy is larger, and an integer of PostgreSQL takes no more.
    if (number := whole_number(written or "0", 9)) is None:
        raise InvalidArgument(f"{name} is {written[:20]!r}", "Give a whole number; leave it empty for no limit.")
    return number


def whole_number(written: str, digits: int = 18) -> int | None:
    """Return the text of a field as a whole number of at most so many digits; None if it is not a number."""
    significant = written.lstrip("0") or "0"
    good = written.isascii() and written.isdecimal() and len(significant) <= digits
    return int(significant) if good else None


def choices(given: Mapping[str, str | None], allowed: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the parameters of an address, each one of what is allowed, or else the first of those."""
    return {name: one if (one := given.get(name)) in known else known[0] for name, known in allowed.items()}
