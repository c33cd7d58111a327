"""What is logged of failures: class and place of the error, never its text, which may quote a body."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Retry, loggable

log = logging.getLogger(__name__)

_EVERY: Final = 60.0  # seconds between two warnings of one class and place
# Code that is compiled from a text may have any name.
_PLACE: Final = re.compile(r'File "(?:[^"]*[/\\])?([\w.<>-]{1,100})", line (\d+), in ([\w.<>]{1,100})$', re.MULTILINE)


class FailureLog:
    """Logs a failure of a queue at once, and others of its class and place once a minute with their number."""

    def __init__(self, queue_name: str) -> None:
        self._queue_name = queue_name
        self._logged: dict[str, tuple[float, int]] = {}

    def add(self, id_: int, name: str) -> None:
        """Log the failure of a message, or count it if one of this name was logged within the last minute."""
        now = time.monotonic()
        at, more = self._logged.get(name, (-_EVERY, 0))
        if now < at + _EVERY:
            self._logged[name] = at, more + 1
            return
        if len(self._logged) >= 1000:
            self._logged.clear()
        self._logged[name] = now, 0
        text = "message %s of queue %s failed with %s; its text: pgqueue show %s --traceback"
        if more:
            text += f", and {more:,} more since the last such warning"
        log.warning(text, id_, self._queue_name, name, id_)


def failure_of(outcome: Outcome) -> Mapping[str, Any] | None:
    """Return the failure that an outcome describes, or None."""
    return outcome.failure if isinstance(outcome, Retry | Failed) else None


def failure_name(failure: Mapping[str, Any]) -> str:
    """Return the class of the error and its place, as `ValueError (orders.py:7 in pack)`."""
    name = loggable(_text(failure, "error"))
    places = _PLACE.findall(_text(failure, "traceback"))
    where = f" ({places[-1][0]}:{places[-1][1]} in {places[-1][2]})" if places else ""
    return name + where


def _text(failure: Mapping[str, Any], name: str) -> str:
    """Return the text of a member of a failure; handlers may return any value there, or an odd mapping."""
    try:
        return str(failure.get(name, ""))
    except Exception as error:
        return type(error).__name__
