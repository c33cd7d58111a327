"""The dead messages that a form chooses: by cause, result, reference and time of death."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import DEAD_RESULTS
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.web.fields import Form, moment, text, whole_number
from airflow_provider_pgqueue.web.section import rows_of

Connection = psycopg.Connection[Any]
FILTER: Final = ("result", "fingerprint", "reference", "since", "until")
MOST: Final = 1_000_000  # messages of one action
_COUNTED: Final = 250_000  # by the form, which has five seconds


def chosen(form: Form) -> dict[str, Any]:
    """Return the arguments of requeue_dead and dismiss_dead that say which messages."""
    result = text(form, "result")
    if result is not None and result not in DEAD_RESULTS:
        raise InvalidArgument(f"result is {result[:40]!r}", f"Give one of {', '.join(DEAD_RESULTS)}.")
    return {
        "results": [result] if result else list(DEAD_RESULTS),
        "fingerprints": [cause] if (cause := text(form, "fingerprint")) else None,
        "reference": text(form, "reference"),
        "since": moment(form, "since"),
        "until": moment(form, "until"),
    }


def count(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Count what would be requeued or dismissed, and return the filter as the form of the page shows it."""
    which = chosen(given)
    (found,) = rows_of(conn, "count_dead", queue_name=name, most=_COUNTED, **which)
    asked = {key: given.get(key, "") for key in ("result", "fingerprint", "reference")}
    return {
        "count": found["count"],
        "ids": found["ids"],
        "newest": found["newest"],
        "most": MOST,
        "counted_up_to": _COUNTED,
        "at_once": TUNING.resolutions_at_once,
        "results": DEAD_RESULTS,
        # A field for a time takes no time zone.
        "asked": asked | {key: (which[key] or "")[:19] for key in ("since", "until")},
        # The action takes exactly the messages that were counted.
        "counted": asked | {"since": which["since"] or "", "until": found["until"].isoformat()},
    }


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an action that takes more messages than fit into one transaction."""

    asked: int
    done: int = 0

    @classmethod
    def of(cls, form: Form) -> Progress:
        """Read it from a form; InvalidArgument if a number is none, or too large."""
        return cls(_number(form, "max_messages", "1000", 1), _number(form, "done", "0", 0))

    @property
    def next(self) -> int:
        """How many messages the next transaction takes; 0 at the end."""
        return max(0, min(TUNING.resolutions_at_once, self.asked - self.done))

    @property
    def later(self) -> int:
        """How many messages are left to the transactions after the next."""
        return max(0, self.asked - self.done - self.next)


def _number(form: Form, name: str, default: str, least: int) -> int:
    written = form.get(name, "").strip() or default
    number = whole_number(written)
    if number is None or not least <= number <= MOST:
        raise InvalidArgument(f"{name} is {written[:20]!r}", f"Give a number from {least} to {MOST}.")
    return number


def reason(form: Form) -> str:
    """Return why messages are dismissed; InvalidArgument if the form does not say."""
    if not (said := text(form, "reason")):
        raise InvalidArgument("no reason is given", "Say why nothing more is to be done about it.")
    return said[:500]
