"""Which dead messages a form means: of one cause, result or reference, that died in some time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.web.parts import rows_of

Form = Mapping[str, str]
Connection = psycopg.Connection[Any]
RESULTS: Final = ("failed", "rejected", "lock_expired", "expired")
FILTER: Final = ("result", "fingerprint", "reference", "since", "until")
MOST: Final = 1_000_000  # messages of one action
AT_ONCE: Final = 5_000  # of one transaction: a second or so, and whoever stops the action stops it after that


def chosen(form: Form) -> dict[str, Any]:
    """Return the arguments of requeue_dead and dismiss_dead that say which messages."""
    result = _text(form, "result")
    if result not in (None, *RESULTS):
        raise InvalidArgument(f"result is {result[:40]!r}", f"Give one of {', '.join(RESULTS)}.")
    return {
        "results": [result] if result else list(RESULTS),
        "fingerprint": _text(form, "fingerprint"),
        "reference": _text(form, "reference"),
        "since": _moment(form, "since"),
        "until": _moment(form, "until"),
    }


def _text(form: Form, name: str) -> str | None:
    text = form.get(name, "").strip()
    if "\0" in text or len(text) > 1000:
        raise InvalidArgument(f"{name} is too long, or has a NUL", "Give at most 1000 characters.")
    return text or None


def _moment(form: Form, name: str) -> str | None:
    """Return a moment of a form, which is UTC unless it says otherwise."""
    if (text := _text(form, name)) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        cure = "Give a moment in UTC, such as 2026-01-31T18:00."
        raise InvalidArgument(f"{name} is {text[:40]!r}", cure) from None


def count(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Count what would be requeued or dismissed, and return the filter as the form of the page shows it."""
    which = chosen(given)
    (found,) = rows_of(
        conn,
        "count_dead",
        queue_name=name,
        fingerprints=[which["fingerprint"]] if which["fingerprint"] else None,
        most=MOST,
        **{key: value for key, value in which.items() if key != "fingerprint"},
    )
    asked = {key: given.get(key, "") for key in ("result", "fingerprint", "reference")}
    return {
        "count": found["count"],
        "ids": found["ids"],
        "newest": found["newest"],
        "most": MOST,
        "at_once": AT_ONCE,
        "results": RESULTS,
        # A field for a moment takes no time zone.
        "asked": asked | {key: (which[key] or "")[:19] for key in ("since", "until")},
        # What was counted is what is done.
        "counted": asked | {"since": which["since"] or "", "until": found["until"].isoformat()},
    }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an action is that takes more messages than one transaction should."""

    asked: int
    done: int = 0

    @classmethod
    def of(cls, form: Form) -> Progress:
        """Read it from a form; InvalidArgument if a number is none, or too large."""
        return cls(_number(form, "max_messages", "1000", 1), _number(form, "done", "0", 0))

    @property
    def next(self) -> int:
        """How many messages the next transaction takes; 0 at the end."""
        return max(0, min(AT_ONCE, self.asked - self.done))


def _number(form: Form, name: str, default: str, least: int) -> int:
    text = form.get(name, "").strip() or default
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:9]) <= MOST:
        raise InvalidArgument(f"{name} is {text[:20]!r}", f"Give a number from {least} to {MOST}.")
    return int(text)


def reason(form: Form) -> str:
    """Return why messages are dismissed; InvalidArgument if the form does not say."""
    if not (said := form.get("reason", "").strip()):
        raise InvalidArgument("no reason is given", "Say why nothing more is to be done about it.")
    return said[:500]
