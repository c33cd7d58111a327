"""What a loop calls for the messages of its leases: within its time, and in smaller pieces after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.portion import tenths
from airflow_provider_pgqueue.core.consumer.time_limit import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import InvalidOutcome, TransactionLeftOpen
from airflow_provider_pgqueue.core.message import Message, Unreadable
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    ErrorRules,
    Outcome,
    Outcomes,
    Rejected,
    Retry,
    checked,
    concerns_message,
    describe,
    outcome_of,
    outcomes_by_id,
    storable,
    unfinished,
)

Handle = Callable[[Message], Outcome | None]
HandleBatch = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]


class Handler:
    """Calls a function for the messages of one lease after another, and gathers their outcomes in the lease.

    Give one function: `handle` gets each message, `handle_batch` gets all messages of a lease. What is gathered is
    settled about once a second. HandlerBroken if the breaker says so.

    :param on_error: what becomes of a message whose call raised, by class of the error.
    """

    def __init__(
        self,
        handle: Handle | None,
        handle_batch: HandleBatch | None,
        *,
        breaker: Breaker,
        on_error: ErrorRules | None = None,
    ) -> None:
        self._handle = handle
        self._handle_batch = handle_batch
        self._function = handle or self._outcomes
        self._breaker = breaker
        self._on_error = on_error
        self._caller = Caller()

    def handle(self, lease: Lease, *, limit: timedelta | None, stop: Callable[[], bool]) -> bool:
        """Handle the messages of a lease until `stop` returns True; return whether all were begun.

        :param limit: how long one call may take.
        """
        self._caller.limit = limit
        each = self._handle is not None
        gather = self._gather if each else self._gather_all
        # The first last. A piece is one message, or a list of messages.
        readable = self._readable(lease)
        pieces: list[Any] = readable[::-1] if each else [readable] if readable else []
        while pieces:
            piece = pieces.pop()
            ids = [piece.id] if each else [message.id for message in piece]
            # Set first: if the loop is stopped in between, the messages must count as begun.
            lease.in_hand = set(ids)
            if stop():
                lease.in_hand = set()
                return False
            if closed := lease.closed_error():
                lease.in_hand = set()
                raise closed
            if lease.lost and lease.in_hand <= lease.lost:
                continue
            try:
                returned = self._call(lease, piece, ids)
            except BaseException as error:
                if not concerns_message(error):
                    self._gather_ended(lease, ids, error)
                    raise
                if len(ids) > 1:
                    pieces += tenths(piece, error)
                    continue
                self._gather_error(lease, ids[0], error)
            else:
                gather(lease, piece, returned)
            if lease.is_due():
                self.settle(lease)
        return True

    def settle(self, lease: Lease) -> None:
        """Settle the outcomes that are gathered in a lease."""
        if closed := lease.closed_error():
            raise closed
        unstored = lease.settle_handled()
        self._breaker.record_settled(unstored=unstored, stored=lease.stored)

    def close(self) -> None:
        """End the thread of its calls; a call that hangs is not waited for."""
        self._caller.close()

    def _readable(self, lease: Lease) -> list[Message]:
        readable = []
        for message in lease.messages:
            if isinstance(message.body, Unreadable) or isinstance(message.headers, Unreadable):
                # The breaker does not count it, because no handler saw it.
                lease.gather(message.id, Rejected(f"Python cannot read its JSON: {message.unreadable}"))
            else:
                readable.append(message)
        return readable

    def _call(self, lease: Lease, piece: Any, ids: list[int]) -> Any:
        """Return what the function returns, outside of a transaction of its own; TransactionLeftOpen if it left one."""
        caller = self._caller
        try:
            returned = self._function(piece) if caller.limit is None else caller.call(self._function, piece, ids)
        except TimeIsUp:
            lease.cut_off_call()
            raise
        except BaseException:
            lease.end_transaction()
            raise
        if lease.end_transaction():
            raise TransactionLeftOpen
        return returned

    def _outcomes(self, piece: list[Message]) -> Outcomes | InvalidOutcome:
        """Call the function for several messages, and return the outcomes by id."""
        if self._handle_batch is None:
            return {}
        # The handler gets a list of its own, because it may empty it.
        returned = self._handle_batch(piece.copy())
        try:
            # Part of the call: a generator runs now, and a mapping of the handler's own may do anything.
            return outcomes_by_id(piece, returned)
        except InvalidOutcome as error:
            # Returned, because what the handler raises is the outcome of its messages.
            return error

    def _gather(self, lease: Lease, message: Message, returned: Outcome | None) -> None:
        outcome = lease.handled[message.id] = PLAIN if returned is None else _checked(lease, message, returned)
        self._breaker.record(message.id, outcome, attempts=message.attempts)

    def _gather_all(self, lease: Lease, piece: list[Message], returned: Outcomes | InvalidOutcome) -> None:
        if isinstance(returned, InvalidOutcome):
            # No message loses an attempt, but other messages come first in the next lease.
            for message in piece:
                lease.gather(message.id, Retry(details=str(returned), count_attempt=False))
            raise returned
        handled, record = lease.handled, self._breaker.record
        for message in piece:
            outcome = returned.get(message.id)
            handled[message.id] = PLAIN if outcome is None else _checked(lease, message, outcome)
        # Once all are gathered, because the breaker may raise at any of them.
        for message in piece:
            record(message.id, handled[message.id], attempts=message.attempts)

    def _gather_error(self, lease: Lease, id_: int, error: BaseException) -> None:
        """Gather the outcome of a message whose call raised, or leave it if the call hangs."""
        if isinstance(error, TimeIsUp):
            lease.leave(id_, error.limit)
            self._breaker.record_hanging(id_, error)
            return
        self._record(lease, [id_], outcome_of(error, self._on_error))

    def _gather_ended(self, lease: Lease, ids: Sequence[int], error: BaseException) -> None:
        """Gather an attempt of each message whose call ends the loop, or the next process would end on them too."""
        if isinstance(error, KeyboardInterrupt):
            return
        # Any of several messages may be the reason.
        outcome = outcome_of if len(ids) == 1 else unfinished
        self._record(lease, ids, outcome(error, self._on_error))

    def _record(self, lease: Lease, ids: Sequence[int], outcome: Outcome) -> None:
        for id_ in ids:
            lease.gather(id_, outcome)
        for id_ in ids:
            self._breaker.record(id_, outcome, attempts=lease.attempt(id_))


def _checked(lease: Lease, message: Message, returned: Outcome) -> Outcome:
    """Return the outcome. If the handler returned something else, put the message behind the others, and raise."""
    try:
        return checked(message, returned)
    except InvalidOutcome as error:
        lease.gather(message.id, Retry(details=storable(str(error)), failure=describe(error), count_attempt=False))
        raise
