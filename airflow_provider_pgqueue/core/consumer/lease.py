"""The messages that are held under one token: renewed while the holder works, settled or given back at the end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import cut, end_statement, is_free, run
from airflow_provider_pgqueue.core.consumer.lease_base import LeaseBase, log_lost
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import ConnectionFailed, LeaseLost, PgQueueError, TransactionLeftOpen
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Rejected, Retry, Success, checked
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)

T = TypeVar("T")
_IDLE: Final = TransactionStatus.IDLE
_NO_PIPELINE: Final = PipelineStatus.OFF
Exchange = Callable[[UUID, Mapping[int, Success | Rejected | Failed]], tuple[set[int], T] | None]
"""Archives messages and does something else in one call; returns which were lost, and what else came of it."""


class Lease(LeaseBase, Sequence[Message]):
    """The messages of one `lease` call, in the order in which to handle them.

    Used in a `with` block, it renews the lease in a thread until the block ends. If the block succeeds, messages that
    were not settled are archived as success; if it raises, they are released and the attempt counts, and so they are,
    with TransactionLeftOpen, if it leaves a transaction open. A process that dies loses nothing: its leases expire.

    `lost` has the ids whose lease a renewal or a call found lost: stop working on them. `unstored` has the ids whose
    outcome could not be stored, so that they were archived as failed. The holder may record in `in_hand` the ids that
    it is handling, and in `handled` the outcomes that it has not settled yet: `give_back` needs both. `in_doubt` says
    that the last renewal may be undone, because a transaction of the handler was open on the connection. `cut_off`
    says why the connection was closed, if the handler left it so that nothing else could use it.

    :param conn: an autocommit connection that nothing else blocks; the lease uses it until the block ends.
    :param lease_for: how long the lease lasts after each renewal, which comes every third of this; by default as long
        as the policy of the queue says.
    :param counts: how messages that are in `handled` end is added here.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        messages: Sequence[Message],
        *,
        lease_for: Duration | None = None,
        handled_by: str | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        super().__init__(
            conn,
            messages[0].lock_token if messages else None,
            _ids(messages),
            lease_for=lease_for,
            handled_by=handled_by,
            attempts={message.id: message.attempts for message in messages},
            max_attempts=messages[0].max_attempts if messages else None,
            counts=counts,
        )
        self.messages = tuple(messages)
        self.in_hand: set[int] = set()
        self.cut_off: str | None = None
        # A transaction that is open now is the caller's.
        self._may_roll_back = _is_idle(conn)
        self._renewal: Renewal | None = None

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Lease of {quantity(len(self))}, {len(self._held)} held>"

    @property
    def held(self) -> list[Message]:
        """The messages that are neither settled nor known to be lost."""
        return [message for message in self.messages if message.id in self._held]

    def __enter__(self) -> Self:
        # In a transaction of the caller a renewal would take effect at its commit only: too late for a long handler.
        if self._held and self._conn.autocommit:
            self._renewal = Renewal()
            self._renewal.hold(self, self._length())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._renewal is not None:
            self._renewal.close()
        if self.end_transaction() and error is None:
            left_open = self.closed_error() or TransactionLeftOpen()
            self.release_after(left_open)
            raise left_open
        if error is None:
            self.archive()
        else:
            self.release_after(error)

    def archive(
        self,
        messages: Collection[Message] | None = None,
        *,
        result: str = "success",
        details: str | None = None,
    ) -> int:
        """Finish messages, by default all that are held, with one result, and return how many.

        LeaseLost has the ids of those that were lost; the others are archived.
        """
        statement = partial(verbs.archive, result=result, details=details, handled_by=self._handled_by)
        return self._call(statement, None if messages is None else _ids(messages))

    def reject(self, message: Message, reason: str) -> None:
        """Finish an invalid message; it is never delivered again."""
        self.settle({message: Rejected(reason)})

    def release(
        self,
        messages: Collection[Message] | None = None,
        *,
        delay: Duration = timedelta(0),
        count_attempt: bool = True,
        details: str | None = None,
        failure: Mapping[str, Any] | None = None,
        back_off: bool = False,
    ) -> int:
        """Give messages, by default all that are held, back to the queue, and return how many.

        They are ready at once, after `delay`, or with `back_off` after the back-off of the queue. A message whose last
        attempt this was is archived as failed, unless `count_attempt` is False.
        """
        statement = partial(
            verbs.release,
            delay=delay,
            count_attempt=count_attempt,
            details=details,
            failure=failure,
            back_off=back_off,
        )
        return self._call(statement, None if messages is None else _ids(messages))

    def give_back(self, conn: psycopg.Connection[Any], *, reason: str | None = None) -> None:
        """Settle the handled messages, and release those that were not begun, without counting an attempt.

        With a `reason` those in hand are released too, as an attempt; the handler that still works on them has lost
        them. To be called from another thread, with a connection of its own, while a handler does not return.
        """
        with self._calling:
            # A copy, because the handler may return meanwhile.
            handled = {id_: outcome for id_, outcome in self.handled.copy().items() if id_ in self._held}
            if unstarted := self._held - self.in_hand - handled.keys():
                with suppress(LeaseLost):
                    self._run(conn, verbs.release(self._require_token(), unstarted, count_attempt=False), unstarted)
            self._settle(conn, handled)
            if reason is not None and (held := frozenset(self._held)):
                with suppress(LeaseLost):
                    self._run(conn, verbs.release(self._require_token(), held, details=reason), held)
                self.lost |= held

    def end_transaction(self) -> bool:
        """Roll back what a handler left open on the connection, and return whether that was anything.

        What settles messages would be part of it, and be undone with it. A transaction of the caller stays open.
        """
        conn = self._conn
        # The same as _is_idle, without a call for each message.
        pgconn = conn.pgconn
        idle = pgconn.transaction_status == _IDLE and pgconn.pipeline_status == _NO_PIPELINE and conn.autocommit
        if (idle and not self.in_doubt) or not self._may_roll_back:
            return False
        was_closed = conn.closed
        # Wait for a renewal, which behind a pooler has a transaction of its own. It waits itself if the handler began a
        # stream after the renewal had found the connection free.
        if not self._calling.acquire(timeout=2 * TUNING.longest_call):
            waited_for = conn.lock
            cut(conn)
            with suppress(RuntimeError):
                waited_for.release()
            self._calling.acquire()
        try:
            end_statement(conn)
            if conn.closed and not was_closed:
                self.cut_off = "its handler left a statement, a stream or a COPY running on it"
            left_open = not was_closed and (conn.closed or not _is_idle(conn))
            if left_open and not conn.closed:
                # If the connection is broken, its next use finds out.
                with suppress(psycopg.Error):
                    conn.rollback()
                    conn.autocommit = True
                if not (conn.closed or _is_idle(conn)):
                    self.cut_off = "its handler left a transaction() or a pipeline() open on it"
                    conn.close()
        finally:
            self._calling.release()
        if self.in_doubt:
            # The rollback may have undone renewals: find out before anything is settled or begun.
            self.renew()
        return left_open

    def cut_off_call(self) -> None:
        """Cancel the statement of a call that hangs, and close the connection if the call has more open on it.

        After the rollback of a transaction the call would commit the second half of its work.
        """
        conn = self._conn
        if not self._may_roll_back:
            return
        if not is_free(conn):
            with suppress(psycopg.Error):  # what the server is doing for the call
                conn.cancel_safe(timeout=5)
        if not (is_free(conn) and _is_idle(conn)):
            self.cut_off = "a call hangs in it"
            cut(conn)

    def closed_error(self) -> ConnectionFailed | None:
        """Return the error that says why the connection was closed, if it was `cut_off`."""
        why = self.cut_off and f"the connection of the consumer was closed, because {self.cut_off}"
        return ConnectionFailed(why, "Let the handler end what it begins.") if why else None

    def settle(self, outcomes: Mapping[Message, Outcome | None]) -> None:
        """Give each message its outcome, where None is success.

        Makes one archive call, and one release call per kind of retry. An outcome that cannot be stored, such as an
        output of more than 64 kB or a delay of years, archives its own message as failed with the reason, and no
        other; `unstored` has the id. LeaseLost has the ids of those that were lost; it is raised after the others were
        settled. Anything else than an outcome is an InvalidOutcome, and nothing is settled.
        """
        for message, outcome in outcomes.items():
            if outcome is not None:
                checked(message, outcome)
        by_id = {message.id: outcome for message, outcome in outcomes.items()}
        with self._calling:
            self._settle(self._conn, by_id)
        if lost := self.lost.intersection(by_id):
            raise LeaseLost(lost)

    def exchange(self, call: Exchange[T]) -> T | None:
        """Settle the `handled` outcomes by a call that also leases other messages, and return those.

        Returns None, and changes nothing, if the lease holds a message without an outcome, an outcome is a Retry, or
        the call is refused. `lost` has the ids of the messages that were lost; the others are archived.
        """
        finals = {id_: outcome for id_, outcome in self.handled.items() if not isinstance(outcome, Retry)}
        if len(finals) < len(self.handled) or self._token is None:
            return None
        with self._calling:
            # The other messages were not begun, or another thread has settled some of the handled ones.
            if self._held != finals.keys():
                return None
            try:
                exchanged = call(self._token, finals)
            except (PgQueueError, psycopg.Error):
                if self._conn.closed:
                    raise
                # Separate calls show the reason, such as a refused outcome or a paused queue.
                return None
            if exchanged is None:
                return None
            lost, following = exchanged
            self.lost |= lost
            self._held.clear()
        log_lost(lost)
        self._count_handled()
        return following

    def release_rest(self, *, begun: bool) -> None:
        """Give messages without an outcome back, without an attempt unless the handler got them."""
        if not (held := len(self._held)):
            return
        try:
            if begun:
                # Without an attempt they would come first in each further lease.
                released = self.release(
                    details="its handler returned, but it has no outcome: was its id changed?", back_off=True
                )
            else:
                released = self.release(count_attempt=False)
        except LeaseLost as error:
            log_lost(error.ids)
            self.counts["lost"] += len(error.ids)
            released = held - len(error.ids)
        if released:
            self.counts["retried" if begun else "released"] += released
            if begun:
                log.warning("%s of queue %s got no outcome", quantity(released), self.messages[0].queue_name)

    def _length(self) -> timedelta:
        if self._lease_for is None:
            self._lease_for = run(self._conn, verbs.lease_policy(self.messages[0].queue_name)).lease_for
        return self._lease_for


def _ids(messages: Collection[Message]) -> list[int]:
    return [message.id for message in messages]


def _is_idle(conn: psycopg.Connection[Any]) -> bool:
    pgconn = conn.pgconn
    return pgconn.transaction_status == _IDLE and pgconn.pipeline_status == _NO_PIPELINE and conn.autocommit
