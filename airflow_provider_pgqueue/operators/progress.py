"""Says every few seconds how far a long task is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from airflow_provider_pgqueue.core.quantity import quantity, rate

_EVERY: Final = 5.0  # seconds


class TaskProgress:
    """Logs a count and its rate, at most every five seconds and once at the end.

    :param info: where to say it, such as `self.log.info`.
    :param what: what is counted and where, such as `published to queue orders`.
    """

    def __init__(self, info: Callable[..., Any], what: str) -> None:
        self._info = info
        self._what = what
        self._started = self._said = time.monotonic()

    def at(self, count: int) -> None:
        """Note the count so far."""
        if time.monotonic() - self._said >= _EVERY:
            self._say(count, "so far")

    def end(self, count: int) -> None:
        """Say the final count."""
        self._say(count, "in all")

    def _say(self, count: int, when: str) -> None:
        self._said = time.monotonic()
        seconds = max(self._said - self._started, 0.001)
        self._info("%s %s %s: %.1f s, %s", quantity(count), self._what, when, seconds, rate(count, seconds))
