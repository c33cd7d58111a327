"""The messages of one lease on their way through the handler: each is handled once, and archived with its outcome."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.calls import Caller, TimeIsUp
from airflow_provider_pgqueue.core.consumer.held import OPEN, Held
from airflow_provider_pgqueue.core.consumer.intake import Intake
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.portion import in_portions
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    HandlerBroken,
    InvalidOutcome,
    LeaseLost,
    PgQueueError,
    TransactionLeftOpen,
)
from airflow_provider_pgqueue.core.message import Message, Unreadable
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    ErrorRules,
    Outcome,
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
from airflow_provider_pgqueue.core.quantity import quantity

log = logging.getLogger(__name__)

_IDLE: Final = TransactionStatus.IDLE
# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all.
_SETTLE_EVERY: Final = 1.0  # seconds

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]


@dataclass(slots=True, kw_only=True, eq=False)
class Settler:
    """Settles what was handled of a lease: what comes in within a second together, and the rest at the end.

    :param counts: how messages ended is added here.
    """

    lease: Held
    breaker: Breaker
    counts: Counter[str]
    _due: float = field(init=False, default_factory=lambda: time.monotonic() + _SETTLE_EVERY)

    def gather(self, id_: int, outcome: Outcome) -> None:
        """Settle the message with this outcome, later."""
        # Kept in the lease, because another thread settles it if the handler hangs.
        self.lease.handled[id_] = outcome

    def record(self, ids: Iterable[int]) -> None:
        """Record the outcomes of a call in the breaker, once all are gathered, because it may raise at any of them."""
        for id_ in ids:
            self.breaker.record(id_, self.lease.handled[id_], attempts=self.lease.attempt(id_))

    def leave(self, id_: int, why: TimeIsUp) -> None:
        """Stop renewing the message of a call that hangs, or archive it after its last attempt."""
        self.counts[self.lease.leave(id_, f"the call took longer than {why.limit}")] += 1
        self.breaker.record_hanging(id_, why)

    def settle_when_due(self) -> None:
        """Settle the gathered outcomes if the last settlement was at least a second ago."""
        if time.monotonic() >= self._due:
            self.settle()
            self._due = time.monotonic() + _SETTLE_EVERY

    def settle(self) -> None:
        """Settle the gathered outcomes, and count them."""
        lease = self.lease
        if not lease.handled:
            return
        lease.finish(lease.handled)
        # Counted and cleared only now, so that an error leaves the outcomes for another try.
        counted = self._count()
        for id_ in sorted(lease.unstored & counted):
            self.breaker.record_unstored(id_, attempts=lease.attempt(id_))

    def wind_up(self, error: BaseException, *, begun: Collection[int]) -> None:
        """Settle what was handled before an error, and give the rest back, with an attempt of those that were begun."""
        try:
            # Handled messages have had their effect: a later error must not deliver them again, nor must a first call
            # that failed, for example after lock_timeout.
            self.settle()
        except (PgQueueError, psycopg.Error) as failed:
            # The first error matters more: SystemExit would become a lost connection, which a worker survives.
            log.warning("could not settle what was handled before %s (%s)", type(error).__name__, type(failed).__name__)
            held = self.lease.held_ids
            ended = {id_: outcome for id_, outcome in self.lease.handled.items() if id_ not in held}
            self.counts.update(self.lease.ends(ended))
        finally:
            self.lease.release_after(error, begun=begun)

    def _count(self) -> set[int]:
        """Count what was handled, which is settled by now, and return the ids."""
        lease = self.lease
        handled, lease.handled = lease.handled, {}
        self.counts.update(lease.ends(handled))
        return set(handled)


class _Stopped(BaseException):
    """The consumer was told to stop before a call."""


class _Ended(BaseException):
    """A call ended the consumer for a reason that is not in its messages."""

    def __init__(self, reason: InvalidOutcome | ConnectionFailed) -> None:
        super().__init__()
        self.reason = reason


@dataclass(slots=True, kw_only=True, eq=False)
class Batch(Settler):
    """The messages of a lease, to be handled and settled.

    :param on_error: what becomes of a message whose handler raised, by class of the error.
    :param caller: calls the handler if it has a time limit, and stops waiting for it at the limit.
    """

    handle: Handler | None
    handle_batch: BatchHandler | None
    lease: Lease
    caller: Caller | None
    on_error: ErrorRules | None = None
    _began_all: bool = field(init=False, default=False)
    _closed: bool = field(init=False, default=False)
    _conn: psycopg.Connection[Any] | None = field(init=False, default=None)
    """The connection, unless a transaction of the caller is open on it."""

    def work(self, intake: Intake, *, room: int, stop: Callable[[], bool]) -> list[Message] | None:
        """Handle messages until `stop` returns True, settle them, and give back those that were not begun.

        Returns the next messages, up to `room`, if they could be leased in the same call, else None.
        """
        self._conn = intake.conn if _is_idle(intake.conn) else None
        try:
            self._handle_all(stop)
            following = None if room <= 0 or stop() else self._exchange(intake, room)
            self.settle()
            if following is None:
                self._release_rest()
        except BaseException as error:
            # Messages that were not begun must lose no attempt, nor any message if the reason is not in these messages.
            blameless = isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception)
            self.wind_up(error, begun=() if blameless else self.lease.in_hand)
            raise
        return following

    def _release_rest(self) -> None:
        """Give messages without an outcome back, without an attempt unless the handler got them."""
        lease = self.lease
        if not (held := len(lease.held_ids)):
            return
        try:
            if self._began_all:
                # Without an attempt they would come first in each further lease.
                released = lease.release(
                    details="its handler returned, but it has no outcome: was its id changed?", back_off=True
                )
            else:
                released = lease.release(count_attempt=False)
        except LeaseLost as error:
            _warn_of_lost(error)
            self.counts["lost"] += len(error.ids)
            released = held - len(error.ids)
        if released:
            self.counts["retried" if self._began_all else "released"] += released
            if self._began_all:
                log.warning("%s of queue %s got no outcome", quantity(released), lease.messages[0].queue_name)

    def _handle_all(self, stop: Callable[[], bool]) -> None:
        messages = self._without_unreadable()
        if self.handle:
            self._each(self.handle, messages, stop)
        elif self.handle_batch and messages:
            self._all_at_once(self.handle_batch, messages, stop)

    def _without_unreadable(self) -> list[Message]:
        readable = []
        for message in self.lease.messages:
            if isinstance(message.body, Unreadable) or isinstance(message.headers, Unreadable):
                # The breaker does not count it, because no handler saw it.
                self.gather(message.id, Rejected(f"Python cannot read its JSON: {message.unreadable}"))
            else:
                readable.append(message)
        return readable

    def _each(self, handle: Handler, messages: list[Message], stop: Callable[[], bool]) -> None:
        lease = self.lease
        for message in messages:
            # Set first: if the loop is stopped in between, the message must count as begun.
            lease.in_hand = {message.id}
            if stop():
                lease.in_hand = set()
                return
            if lease.lost and message.id in lease.lost:
                continue
            try:
                returned = self._call(handle, message, [message.id])
            except TimeIsUp as error:
                self.leave(message.id, error)
            except _Ended as error:
                raise error.reason from None
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                outcome = outcome_of(error, self.on_error)
                if concerns_message(error):
                    self._record(message, outcome)
                    continue
                # An attempt of this message, or the next process would end on it too.
                self.gather(message.id, outcome)
                self.record([message.id])
                raise
            else:
                self._record(message, PLAIN if returned is None else self._checked(message, returned))
        self._began_all = True

    def _all_at_once(self, handle_batch: BatchHandler, messages: list[Message], stop: Callable[[], bool]) -> None:
        lease = self.lease

        def handle(piece: list[Message]) -> Mapping[int, Outcome | None]:
            # The handler gets a list of its own, because it may empty it.
            returned = handle_batch(piece.copy())
            try:
                # Part of the call: a generator runs now, and a mapping of the handler's own may do anything.
                return outcomes_by_id(piece, returned)
            except InvalidOutcome as error:
                raise _Ended(error) from error

        def call(piece: list[Message]) -> Mapping[int, Outcome | None]:
            ids = [message.id for message in piece]
            lease.in_hand = set(ids)
            if stop():
                lease.in_hand = set()
                raise _Stopped
            try:
                outcomes: Mapping[int, Outcome | None] = self._call(handle, piece, ids)
                return outcomes
            except BaseException as error:
                if not concerns_message(error):
                    self._gather_ended(ids, error)
                raise

        try:
            for piece, outcomes, error in in_portions(messages, call):
                self._gather_all(piece, outcomes or {}, error)
                self.settle_when_due()
            self._began_all = True
        except _Stopped:
            pass
        except _Ended as ended:
            raise ended.reason from None

    def _gather_all(
        self, piece: list[Message], outcomes: Mapping[int, Outcome | None], error: BaseException | None
    ) -> None:
        if isinstance(error, TimeIsUp):
            self.leave(piece[0].id, error)
            return
        for message in piece:
            outcome = outcomes.get(message.id) if error is None else outcome_of(error, self.on_error)
            self.gather(message.id, PLAIN if outcome is None else self._checked(message, outcome))
        self.record([message.id for message in piece])

    def _gather_ended(self, ids: list[int], error: BaseException) -> None:
        """Settle the messages of a call that ends the consumer, any of which may be the reason."""
        if isinstance(error, KeyboardInterrupt):
            return
        for id_ in ids:
            if not isinstance(error, _Ended):
                alone = len(ids) == 1
                self.gather(id_, outcome_of(error, self.on_error) if alone else unfinished(error, self.on_error))
            elif isinstance(error.reason, InvalidOutcome):
                # No message loses an attempt, but other messages come first in the next lease.
                self.gather(id_, Retry(details=str(error.reason), count_attempt=False))
        if not isinstance(error, _Ended):
            self.record(ids)

    def _call(self, function: Callable[[Any], Any], given: Any, ids: list[int]) -> Any:
        """Return what the handler returns, outside of a transaction of its own; TransactionLeftOpen if it left one."""
        caller = self.caller
        if self._closed:
            self.lease.in_hand = set()
            raise _Ended(ConnectionFailed("the connection of the consumer was closed, because a call hangs in it"))
        try:
            returned = function(given) if caller is None else caller.call(function, given, ids)
        except TimeIsUp:
            if self._conn is not None and self._conn.pgconn.transaction_status in OPEN:
                # After a rollback the call would commit the second half of its work.
                log.warning("a call that hangs has a transaction open on the connection of its consumer: closing it")
                self._conn.close()
                self._closed = True
            raise
        except BaseException:
            self._end_transaction()
            raise
        if self._end_transaction():
            raise TransactionLeftOpen
        return returned

    def _end_transaction(self) -> bool:
        conn, lease = self._conn, self.lease
        # The same as _is_idle, without a call for each message.
        if conn is None or (conn.pgconn.transaction_status == _IDLE and conn.autocommit and not lease.in_doubt):
            return False
        left_open = lease.end_transaction()
        if lease.in_doubt:
            # A rollback of the handler may have undone renewals: find out before anything is settled or begun.
            lease.renew()
        return left_open

    def _checked(self, message: Message, returned: Any) -> Outcome:
        """Return the outcome. If the handler returned something else, put the message behind the others, and raise."""
        try:
            return checked(message, returned)
        except InvalidOutcome as error:
            self.gather(message.id, Retry(details=storable(str(error)), failure=describe(error), count_attempt=False))
            raise

    def _record(self, message: Message, outcome: Outcome) -> None:
        self.gather(message.id, outcome)
        self.breaker.record(message.id, outcome, attempts=message.attempts)
        self.settle_when_due()

    def _exchange(self, intake: Intake, room: int) -> list[Message] | None:
        """Settle all that is left and lease the next messages in one call; None if one call cannot do both."""
        following = self.lease.exchange(intake, room)
        if following is not None and (lost := self.lease.lost & self._count()):
            _warn_of_lost(LeaseLost(lost))
        return following


def _warn_of_lost(error: LeaseLost) -> None:
    log.warning("%s; they are delivered again, unless somebody else ended them", error.problem)


def _is_idle(conn: psycopg.Connection[Any]) -> bool:
    return conn.pgconn.transaction_status == _IDLE and conn.autocommit
