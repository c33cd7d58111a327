"""A task or watcher that waits: its watch, its next notification, and the warning or error that it has to report."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Final

from airflow_provider_pgqueue.core.message import ClosedQueue
from airflow_provider_pgqueue.triggers.watch import Notification, Watch

log = logging.getLogger(__name__)
_IF_SLOW: Final = "The server is slow, or statement_timeout of this login too short: messages.health() may say why."


class Waiter:
    """A watch and its latest notification. A new notification replaces one that was not taken: only the last counts."""

    def __init__(self, watch: Watch, doubt_again: float) -> None:
        self.watch = watch
        self.question = watch.question
        self._doubt_again = doubt_again
        self._closed: ClosedQueue | None = None
        self._was_open = False
        self._doubt_at = -math.inf
        self._notification: Notification | None = None
        self._warning: str | None = None
        self._error: BaseException | None = None
        self._is_slow = False
        self._is_away = False
        self._notified = asyncio.Event()

    async def next(self) -> Notification:
        """Wait for the next notification and return it; meanwhile log a warning, or raise an error, if one comes."""
        while True:
            await self._notified.wait()
            self._notified.clear()
            if self._error is not None:
                # Several waiters raise the same error object, and each raise would extend its traceback.
                raise self._error.with_traceback(None)
            if self._warning is not None:
                # Logged here, in the context of the waiting task, so that the log of the task has it too.
                log.warning("%s", self._warning)
                self._warning = None
            if self._notification is not None:
                notification, self._notification = self._notification, None
                return notification

    def doubts(self, now: float) -> bool:
        """Return whether to check now that the queue exists: always while it is missing, else now and then."""
        return self.watch.of_queue and now >= self._doubt_at

    def see_queue(self, closed: ClosedQueue | None, now: float) -> None:
        """Record that the queue can be waited for, or warn once that it does not exist, was dropped, or is paused.

        A queue that was paused and then dropped counts as dropped.
        """
        if closed is not None and closed != self._closed:
            gone = self._was_open and not closed.paused
            self._warning = str(closed).replace("does not exist", "no longer exists") if gone else str(closed)
            self._notified.set()
        self._closed = closed
        self._was_open = closed is None or closed.paused
        self._doubt_at = now + self._doubt_again if self._was_open else -math.inf

    def see_slow(self, took: float, pause: float) -> None:
        """Warn that the poll was cancelled, once until a poll succeeds."""
        if not self._is_slow:
            queue = f"queue {self.watch.queue_name!r}" if self.watch.queue_name else "messages"
            self._warning = (
                f"{queue}: a poll was cancelled after {took:.1f} s; the next is in {pause:.0f} s, and those "
                f"after it come more rarely. {_IF_SLOW}"
            )
            self._notified.set()
        self._is_slow = True

    def see_away(self, reason: str | None) -> None:
        """Warn once that there is no connection; a reason of None says that there is a connection again."""
        if reason is not None and not self._is_away:
            self._warning = f"waiting for a connection: {reason}"
            self._notified.set()
        self._is_away = reason is not None

    def receive(self, rows: list[Any], now: float) -> None:
        """Pass the rows of a poll to the watch, and keep the notification that the watch returns."""
        self._is_slow = False
        if notification := self.watch.receive(rows, now):
            self._notification = notification
            self._notified.set()

    def fail(self, error: BaseException) -> None:
        """End the waiting with an error."""
        self._error = error
        self._notified.set()
