"""The messages of one lease on their way through the handler: each is handled once, and archived with its outcome."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_provider_pgqueue.core.breaker import Breaker, failure_of
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidOutcome, LeaseLost, PgQueueError
from airflow_provider_pgqueue.core.intake import Intake
from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import Message, Unreadable
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    Outcome,
    Rejected,
    Retry,
    checked,
    describe,
    end_of,
    outcome_of,
    outcomes_by_id,
    storable,
)

if TYPE_CHECKING:
    from airflow_provider_pgqueue.core.consumer import Consumer

log = logging.getLogger(__name__)

# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all.
_SETTLE_EVERY: Final = 1.0  # seconds

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]


class Batch:
    """The messages of a lease, to be handled, and settled: those of each second together, and the rest at the end.

    :param consumer: has the handler, and says what becomes of a message whose handler raises.
    :param caller: calls the handler if it has a time limit, and stops waiting for it at the limit.
    :param counts: how messages ended is added here.
    """

    def __init__(
        self,
        consumer: Consumer,
        lease: Lease,
        *,
        caller: Caller | None,
        breaker: Breaker,
        counts: Counter[str],
    ) -> None:
        self._consumer = consumer
        self._lease = lease
        self._caller = caller
        self._breaker = breaker
        self._counts = counts
        self._gathered: dict[Message, Outcome] = {}
        self._due = time.monotonic() + _SETTLE_EVERY

    def work(self, intake: Intake, *, room: int, stop: Callable[[], bool]) -> list[Message] | None:
        """Handle all messages until `stop` returns True, settle them, and give back what nobody began.

        Returns the next messages, up to `room`, if they could be leased in the same call, else None. When the handler
        is broken, failures that are not settled yet become retries that do not count as attempts.
        """
        lease, following = self._lease, None
        with lease:
            try:
                self._handle_all(stop)
                following = None if room <= 0 or stop() else self._exchange(intake, room)
                self._settle()
            except BaseException as error:
                self._wind_up(error)
                raise
            if following is None and (unstarted := lease.release_unstarted()):
                # Nobody began them, so it was no attempt.
                self._counts["released"] += unstarted
        return following

    def _wind_up(self, error: BaseException) -> None:
        """Settle what was handled before an error; give the rest back too, if the error is about none of them."""
        if isinstance(error, HandlerBroken):
            self._gathered = {message: _uncounted(outcome) for message, outcome in self._gathered.items()}
        try:
            # What was handled has had its effect: it must not be delivered again because of what came after it.
            self._settle()
            if isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception):
                # The loop ends for a reason that is not in these messages.
                self._lease.release_unstarted()
        except (PgQueueError, psycopg.Error) as failed:
            # The error matters more: a SystemExit would end as one of a lost connection, which a worker survives.
            log.warning("could not settle what was handled before %s (%s)", type(error).__name__, type(failed).__name__)

    def _handle_all(self, stop: Callable[[], bool]) -> None:
        messages = self._without_unreadable()
        if self._consumer.handle:
            self._each(self._consumer.handle, messages, stop)
        elif self._consumer.handle_batch and messages:
            self._all_at_once(self._consumer.handle_batch, messages, stop)

    def _without_unreadable(self) -> list[Message]:
        readable = []
        for message in self._lease.messages:
            if isinstance(message.body, Unreadable) or isinstance(message.headers, Unreadable):
                # Not the breaker's: no handler saw it.
                self._gather(message, Rejected(f"Python cannot read its JSON: {message.unreadable}"))
            else:
                readable.append(message)
        return readable

    def _each(self, handle: Handler, messages: list[Message], stop: Callable[[], bool]) -> None:
        lease, caller = self._lease, self._caller
        for message in messages:
            # Before the question: whoever stops the loop in between must not take it for a message that nobody began.
            lease.in_hand = {message.id}
            if stop():
                return
            if message.id in lease.lost:
                continue
            try:
                returned = handle(message) if caller is None else caller.call(handle, message)
            except TimeIsUp as error:
                self._leave([message], error)
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
                self._note(message, PLAIN if returned is None else self._checked(message, returned))

    def _all_at_once(self, handle_batch: BatchHandler, messages: list[Message], stop: Callable[[], bool]) -> None:
        caller = self._caller
        self._lease.in_hand = {message.id for message in messages}
        if stop():
            return
        try:
            returned = caller.call(handle_batch, messages, len(messages)) if caller else handle_batch(messages)
        except TimeIsUp as error:
            self._leave(messages, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = describe(error)
            for message in messages:
                self._note(message, self._outcome(message, error, failure))
            if not isinstance(error, Exception):
                raise
        else:
            try:
                outcomes = outcomes_by_id(messages, returned)
            except InvalidOutcome as error:
                # Nobody knows which message it is: no attempt of any, but those behind them come first next time.
                for message in messages:
                    self._gather(message, Retry(details=str(error), count_attempt=False))
                raise
            for message in messages:
                outcome = outcomes.get(message.id)
                self._note(message, PLAIN if outcome is None else self._checked(message, outcome))

    def _checked(self, message: Message, returned: Any) -> Outcome:
        """Return the outcome. If the handler returned something else, put the message behind the others, and raise."""
        try:
            return checked(message, returned)
        except InvalidOutcome as error:
            self._gather(message, Retry(details=storable(str(error)), failure=describe(error), count_attempt=False))
            raise

    def _leave(self, messages: list[Message], why: TimeIsUp) -> None:
        """Stop renewing the messages of a call that hangs."""
        self._lease.let_expire(messages)
        self._counts["timed_out"] += len(messages)
        self._breaker.note_hanging([message.id for message in messages], why)

    def _outcome(self, message: Message, error: BaseException, failure: dict[str, str] | None = None) -> Outcome:
        retry_delay = self._consumer.retry_delay
        delay = retry_delay(message.attempts) if retry_delay else None
        return outcome_of(error, rules=self._consumer.on_error, delay=delay, failure=failure)

    def _note(self, message: Message, outcome: Outcome) -> None:
        self._gather(message, outcome)
        self._breaker.note(message.id, outcome)
        # What may be taken back soon is not settled yet.
        if time.monotonic() >= self._due and not self._breaker.suspects:
            self._settle()
            self._due = time.monotonic() + _SETTLE_EVERY

    def _gather(self, message: Message, outcome: Outcome) -> None:
        self._gathered[message] = outcome
        # For whoever settles it beside a handler that hangs.
        self._lease.handled[message.id] = outcome

    def _exchange(self, intake: Intake, room: int) -> list[Message] | None:
        """Settle all that is left and lease the next messages in one call; None if that cannot be done in one."""
        outcomes = {message.id: outcome for message, outcome in self._gathered.items()}
        settled = self._take()
        following = self._lease.exchange(outcomes, intake, room)
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
            lease.settle(settled, only_held=True)
        except LeaseLost as error:
            # Another consumer has those messages now, and the others are settled: nothing that should end the loop.
            _warn_of_lost(error)
        self._count(settled)
        for message in settled if lease.unkept else ():
            if message.id in lease.unkept:
                self._breaker.note_unkept(message.id)

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
            else end_of(message, outcome)
            for message, outcome in settled.items()
        )


def _warn_of_lost(error: LeaseLost) -> None:
    log.warning("%s; they are delivered again", error.problem)


def _uncounted(outcome: Outcome) -> Outcome:
    """Return a failure as a retry that does not count, after a delay, so that the messages behind it come first."""
    if not isinstance(outcome, Retry) or failure_of(outcome) is None:
        return outcome
    return replace(outcome, count_attempt=False)
