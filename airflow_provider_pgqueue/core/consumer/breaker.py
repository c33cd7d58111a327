"""Stops a consumer whose handler is broken before it has spent an attempt of every message in the queue."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from airflow_provider_pgqueue.core.consumer.failures import FailureLog, failure_name, failure_of
from airflow_provider_pgqueue.core.consumer.time_limit import TimeIsUp
from airflow_provider_pgqueue.core.errors import HandlerBroken
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Outcome, Retry

log = logging.getLogger(__name__)

_MOST_HANGING: Final = 10  # messages whose calls may hang in this process before it stops


class Breaker:
    """Raises HandlerBroken when a handler fails on `give_up_after` messages and on none between them succeeds.

    Only the first attempt of a message counts: a message that fails again may itself be bad. Because the failed attempt
    is spent, a message counts for one consumer only, so bad messages cannot stop the queue for the good ones. For
    the same reason a failure that spends no attempt, as a rule of `on_error` may say, does not count. What a handler
    returns without a `failure` is a decision, not a failure. Outcomes that cannot be stored are counted apart, because
    that is known only when they are settled.

    `handled` and `failed` count all messages that were recorded, also with a `give_up_after` of 0; a message for which
    the handler returned `Failed` counts here too.
    """

    def __init__(self, queue_name: str, give_up_after: int | None) -> None:
        self._queue_name = queue_name
        self._limit = give_up_after
        self._log = FailureLog(queue_name)
        self._in_a_row = 0
        self._unstored_in_a_row = 0
        self.handled = 0
        self.failed = 0

    def record(self, id_: int, outcome: Outcome, *, attempts: int) -> None:
        """Count the outcome of an attempt, and log a failure; HandlerBroken if it is one too many."""
        self.handled += 1
        # Compared by identity first, because most outcomes are plain.
        failure = None if outcome is PLAIN else failure_of(outcome)
        self.failed += outcome is not PLAIN and _is_failure(outcome)
        if failure is None:
            self._in_a_row = 0
            return
        name = failure_name(failure)
        self._log.add(id_, name)
        if attempts == 1 and not (isinstance(outcome, Retry) and not outcome.count_attempt):
            self._in_a_row += 1
            self._check(self._in_a_row, name)

    def record_success(self) -> None:
        """Note that messages succeeded, in one cheap call for all of them."""
        self._in_a_row = 0

    def record_settled(self, *, unstored: Collection[Outcome], stored: bool) -> None:
        """Count outcomes that could not be stored, from 0 on if others could be; HandlerBroken if they are too many."""
        self.failed += sum(not _is_failure(outcome) for outcome in unstored)
        self._unstored_in_a_row = len(unstored) if stored else self._unstored_in_a_row + len(unstored)
        self._check(self._unstored_in_a_row, "outcomes that cannot be stored")

    def record_hanging(self, id_: int, why: TimeIsUp) -> None:
        """Count a message whose call exceeded its time, and log it; HandlerBroken if the calls of too many hang."""
        self.handled += 1
        self.failed += 1
        log.warning(
            "the handler of queue %s exceeded its time of %s on message %s: the lease is no longer renewed, and the "
            "call continues in a thread that nobody waits for",
            self._queue_name,
            why.limit,
            id_,
        )
        if why.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"the calls of the handler of queue {self._queue_name!r} hang on {why.hanging} messages",
                "Start the process again, which ends them, and give what the handler waits for a time-out.",
            )

    def _check(self, in_a_row: int, why: str) -> None:
        if self._limit and in_a_row >= self._limit:
            raise HandlerBroken(
                f"the handler of queue {self._queue_name!r} failed on {in_a_row:,} messages in a row, "
                f"the last with {why}",
                "Fix it and start again: for these an attempt was counted, and the rest was given back without one. If "
                "the messages are wrong, start it again as it is: none stops it twice. give_up_after says after how "
                "many it stops; 0 never stops.",
            )


def _is_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) or failure_of(outcome) is not None
