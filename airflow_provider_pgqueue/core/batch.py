"""The messages of one lease in the hands of a handler: each is settled with the outcome that it returned."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_pgqueue.core.breaker import Breaker, failure_of
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidOutcome, LeaseLost
from airflow_provider_pgqueue.core.intake import Intake
from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    ErrorRules,
    Failed,
    Outcome,
    Rejected,
    Retry,
    Success,
    describe,
    outcome_of,
)
from airflow_provider_pgqueue.core.quantity import quantity

log = logging.getLogger(__name__)

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]
# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all. Seconds.
_SETTLE_EVERY = 1.0
_MOST_HANGING = 10  # calls that may hang in this process before it stops


class Batch:
    """Handles the messages of a lease and settles them: those of each second together, and the rest at the end.

    :param limit: how long a handler may take for a message.
    :param counts: how messages ended is added here.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        caller: Caller,
        limit: timedelta | None,
        retry_delay: Callable[[int], timedelta] | None,
        on_error: ErrorRules | None,
        breaker: Breaker,
        counts: Counter[str],
    ) -> None:
        self._lease = lease
        self._caller = caller
        self._limit = limit
        self._retry_delay = retry_delay
        self._on_error = on_error
        self._breaker = breaker
        self._counts = counts
        self._gathered: dict[Message, Outcome] = {}
        self._due = time.monotonic() + _SETTLE_EVERY

    def work(
        self,
        handle: Handler | None,
        handle_batch: BatchHandler | None,
        *,
        stop: Callable[[], bool],
        intake: Intake,
        wanted: Callable[[], int],
    ) -> list[Message] | None:
        """Handle all messages until `stop` returns True, settle them, and give back what nobody began.

        Returns the next messages, up to `wanted`, if they could be leased in the same call, else None. When the handler
        is broken, failures that are not settled yet become retries that are no attempts.
        """
        lease, following = self._lease, None
        with lease:
            try:
                self._handle_all(handle, handle_batch, stop)
                following = self._exchange(intake, wanted)
                self._settle()
            except BaseException as error:
                if isinstance(error, HandlerBroken):
                    self._gathered = {message: _uncounted(outcome) for message, outcome in self._gathered.items()}
                # What was handled has had its effect: it must not be delivered again because of what came after it.
                self._settle()
                if isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception):
                    # The loop ends for a reason that is not in these messages.
                    lease.release(lease.held, count_attempt=False)
                raise
            if unstarted := lease.held:
                # Nobody began them, so it was no attempt.
                self._counts["released"] += len(unstarted)
                lease.release(unstarted, count_attempt=False)
        return following

    def _handle_all(self, handle: Handler | None, handle_batch: BatchHandler | None, stop: Callable[[], bool]) -> None:
        messages = self._without_unreadable()
        if handle:
            self._each(handle, messages, stop)
        elif handle_batch and messages:
            self._all_at_once(handle_batch, messages)

    def _without_unreadable(self) -> list[Message]:
        readable = []
        for message in self._lease:
            if reason := message.unreadable:
                # Not the breaker's: no handler saw it.
                self._gather(message, Rejected(f"Python cannot read its JSON: {reason}"))
            else:
                readable.append(message)
        return readable

    def _each(self, handle: Handler, messages: list[Message], stop: Callable[[], bool]) -> None:
        lease = self._lease
        for message in messages:
            # Before the question: whoever stops the loop in between must not take it for a message that nobody began.
            lease.in_hand = {message.id}
            if stop():
                return
            if message.id in lease.lost:
                continue
            try:
                returned = handle(message) if self._limit is None else self._caller.call(handle, message, self._limit)
            except TimeIsUp:
                self._leave([message])
                continue
            except Exception as error:
                # Whatever the handler raises concerns this message alone.
                self._note(message, self._outcome(message, error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # The handler ends the process, or ran out of its time: an attempt of this message, or the next process
                # would end on it too.
                self._note(message, self._outcome(message, error))
                raise
            else:
                self._note(message, PLAIN if returned is None else _checked(message, returned))

    def _all_at_once(self, handle_batch: BatchHandler, messages: list[Message]) -> None:
        self._lease.in_hand = {message.id for message in messages}
        try:
            limit = None if self._limit is None else self._limit * len(messages)
            returned = self._caller.call(handle_batch, messages, limit)
        except TimeIsUp:
            self._leave(messages)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = describe(error)
            for message in messages:
                self._note(message, self._outcome(message, error, failure))
            if not isinstance(error, Exception):
                raise
        else:
            outcomes = outcomes_by_id(messages, returned)
            for message in messages:
                outcome = outcomes.get(message.id)
                self._note(message, PLAIN if outcome is None else _checked(message, outcome))

    def _leave(self, messages: list[Message]) -> None:
        """Stop renewing the messages of a call that hangs; HandlerBroken if too many calls hang."""
        self._lease.let_expire(messages)
        self._counts["timed_out"] += len(messages)
        self._breaker.handled += len(messages)
        self._breaker.failed += len(messages)
        queue_name = messages[0].queue_name
        log.warning(
            "the handler of queue %s exceeded its time of %s on %s: the lease is no longer renewed, and the call goes "
            "on in a thread that nobody waits for",
            queue_name,
            self._limit and self._limit * len(messages),
            f"message {messages[0].id}" if len(messages) == 1 else quantity(len(messages)),
        )
        if self._caller.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"{self._caller.hanging} calls of the handler of queue {queue_name!r} hang",
                "Start the process again, which ends them, and give what the handler waits for a time-out.",
            )

    def _outcome(self, message: Message, error: BaseException, failure: dict[str, str] | None = None) -> Outcome:
        delay = self._retry_delay(message.attempts) if self._retry_delay else None
        return outcome_of(error, rules=self._on_error, delay=delay, failure=failure)

    def _note(self, message: Message, outcome: Outcome) -> None:
        self._gather(message, outcome)
        self._breaker.note(message, outcome)
        # What may be taken back soon is not settled yet.
        if time.monotonic() >= self._due and not self._breaker.suspects:
            self._settle()
            self._due = time.monotonic() + _SETTLE_EVERY

    def _gather(self, message: Message, outcome: Outcome) -> None:
        self._gathered[message] = outcome
        # For whoever settles it beside a handler that hangs.
        self._lease.handled[message.id] = outcome

    def _exchange(self, intake: Intake, wanted: Callable[[], int]) -> list[Message] | None:
        """Settle what is left and lease the next messages in one call, if nothing else is left and that is possible."""
        outcomes = {message.id: outcome for message, outcome in self._gathered.items()}
        number = wanted() if self._lease.holds_just(outcomes) else 0
        if number <= 0:
            return None
        settled = self._take()
        following = self._lease.exchange(outcomes, intake, number)
        if following is None:
            self._gathered = settled
        else:
            self._count(settled)
            if lost := self._lease.lost & outcomes.keys():
                _warn_of_lost(LeaseLost(lost))
        return following

    def _settle(self) -> None:
        settled, lease = self._take(), self._lease
        if not settled:
            return
        try:
            lease.settle({message: outcome for message, outcome in settled.items() if lease.holds(message)})
        except LeaseLost as error:
            # Another consumer has those messages now, and the others are settled: nothing that should end the loop.
            _warn_of_lost(error)
        self._count(settled)
        for message in settled if lease.unkept else ():
            if message.id in lease.unkept:
                self._breaker.note_unkept(message)

    def _take(self) -> dict[Message, Outcome]:
        taken, self._gathered = self._gathered, {}
        return taken

    def _count(self, settled: Mapping[Message, Outcome]) -> None:
        lease = self._lease
        self._counts.update(
            "success"
            if outcome is PLAIN and not lease.lost
            else "lost"
            if message.id in lease.lost
            else "failed"
            if message.id in lease.unkept
            else _name(message, outcome)
            for message, outcome in settled.items()
        )


def _warn_of_lost(error: LeaseLost) -> None:
    log.warning("%s; they are delivered again", error.problem)


def _checked(message: Message, outcome: Any) -> Outcome:
    if not isinstance(outcome, Outcome):
        raise InvalidOutcome(
            f"the handler of queue {message.queue_name!r} returned {type(outcome).__name__} for message {message.id}. "
            "Return None for success, or Success(), Rejected(), Failed() or Retry()."
        )
    return outcome


def outcomes_by_id(messages: Sequence[Message], outcomes: Any) -> Mapping[int, Any]:
    """Return by message id what a batch handler returned; InvalidOutcome if it is nothing of the kind."""
    ids = [message.id for message in messages]
    if outcomes is None:
        return {}
    if isinstance(outcomes, Mapping):
        known = set(ids)
        if unknown := [id_ for id_ in outcomes if id_ not in known]:
            raise InvalidOutcome(f"the handler gave outcomes for messages that it did not get: {unknown[:10]}")
        return outcomes
    if not isinstance(outcomes, Iterable) or isinstance(outcomes, str | bytes):
        raise InvalidOutcome(
            f"the handler returned {type(outcomes).__name__} for {len(ids)} messages. Return None if all succeeded, "
            "outcomes by message id, or one outcome for each message in order."
        )
    in_order = list(outcomes)
    if len(in_order) != len(ids):
        raise InvalidOutcome(f"the handler returned {len(in_order)} outcomes for {len(ids)} messages. Return one each.")
    return dict(zip(ids, in_order, strict=True))


def _uncounted(outcome: Outcome) -> Outcome:
    """Return a failure as a retry that is no attempt: later, so that those behind it come first next time."""
    if not isinstance(outcome, Retry) or failure_of(outcome) is None:
        return outcome
    return replace(outcome, count_attempt=False)


def _name(message: Message, outcome: Outcome) -> str:
    match outcome:
        case Success():
            return "success"
        case Rejected():
            return "rejected"
        case Failed():
            return "failed"
        case Retry(count_attempt=counted):
            return "failed" if counted and message.attempts >= message.max_attempts else "retried"
