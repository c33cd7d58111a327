"""Messages that are held for a while: renewed while the holder works, settled or given back at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, overload
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import end_statement, run, savepoint
from airflow_provider_pgqueue.core.consumer.intake import Intake
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.consumer.settle import settlement
from airflow_provider_pgqueue.core.errors import (
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    PgQueueError,
)
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Rejected, Retry, checked, describe, is_plain, text_of
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)

_OPEN: Final = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Lease(Sequence[Message]):
    """The messages of one `lease` call, in the order in which to handle them.

    Used in a `with` block, it renews the lease in a thread until the block ends. If the block succeeds, messages that
    were not settled are archived as success; if it raises, they are released and the attempt counts. A process that
    dies loses nothing: its leases expire.

    `lost` has the ids whose lease a renewal or a call found lost: stop working on them. `unkept` has the ids whose
    outcome could not be kept, so that they were archived as failed. The holder may note in `in_hand` the ids that it is
    handling, and in `handled` the outcomes that it has not settled yet: `give_back` needs both. `in_doubt` says
    that the last renewal may be undone, because a transaction of somebody else was open on the connection.

    :param conn: an autocommit connection that nothing else blocks; the lease uses it until the block ends.
    :param lease_for: how long the lease lasts after each renewal, which comes every third of this; by default as long
        as the policy of the queue says.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        messages: Sequence[Message],
        *,
        lease_for: timedelta | None = None,
        handled_by: str | None = None,
    ) -> None:
        self._conn = conn
        self.messages = tuple(messages)
        self._lease_for = lease_for
        self._handled_by = handled_by
        self._token = messages[0].lock_token if messages else None
        self._held = {message.id for message in messages}
        self.lost: set[int] = set()
        self.unkept: set[int] = set()
        self.in_hand: set[int] = set()
        self.handled: dict[int, Outcome] = {}
        self.in_doubt = False
        self._calling = threading.Lock()
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

    @property
    def number_held(self) -> int:
        """How many messages are neither settled nor known to be lost."""
        return len(self._held)

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
        if error is None:
            self._end(lambda token, ids: verbs.archive(token, ids, handled_by=self._handled_by))
        else:
            self.release_after(error)

    def release_after(self, error: BaseException, *, begun: Collection[int] | None = None) -> None:
        """Release what is still held because its holder raised, as an attempt; if that fails, only log a warning.

        With `begun` it is an attempt of these ids alone, and those with an outcome in `handled` stay held: they are
        settled by `give_back`, or delivered again when the lease ends.
        """
        kind = type(error).__name__
        try:
            handled: set[int] = set()
            if begun is not None:
                handled.update(self.handled)
                self._end(_uncounted, besides=handled.union(begun))
            text, failure = f"{kind}: {text_of(error)}"[:4000], describe(error)
            self._end(lambda token, ids: verbs.release(token, ids, details=text, failure=failure), besides=handled)
        except (PgQueueError, psycopg.Error) as failed:
            # The error of the caller matters more, and a broken connection is the usual reason for both.
            log.warning(
                "could not release %s after %s (%s): delivered again when the lease ends",
                quantity(len(self._held)),
                kind,
                type(failed).__name__,
            )

    def renew(self) -> None:
        """Extend the lease of what is still held; if that fails or messages were lost, only log a warning."""
        try:
            self.extend()
        except LeaseLost as error:
            # Without the fix, which is to do what this does.
            log.warning("%s; another consumer may have them now", error.problem)
        except (PgQueueError, psycopg.Error) as error:
            log.warning("could not extend the lease of %s: %s", quantity(len(self._held)), type(error).__name__)

    def extend(self, lease_for: timedelta | None = None) -> None:
        """Extend the lease of what is still held to `lease_for` from now. LeaseLost has the ids that were lost."""
        with self._calling:
            if held := frozenset(self._held):
                statement = verbs.extend(
                    self._require_token(), held, lease_for=self._length() if lease_for is None else lease_for
                )
                # A rollback would undo it; a statement that runs now may be part of a transaction, too.
                self.in_doubt = self._conn.pgconn.transaction_status in (*_OPEN, TransactionStatus.ACTIVE)
                self._run(self._conn, statement, ())
                self.in_doubt |= self._conn.pgconn.transaction_status in _OPEN

    def let_expire(self, messages: Collection[Message]) -> None:
        """Stop renewing the lease of messages; when it ends, the attempt counts."""
        self._held.difference_update(_ids(messages))

    def archive(
        self,
        messages: Collection[Message],
        *,
        result: str = "success",
        details: str | None = None,
    ) -> None:
        """Finish messages with one result. LeaseLost has the ids of those that were lost; the others are archived."""
        if ids := _ids(messages):
            statement = verbs.archive(
                self._require_token(),
                ids,
                result=result,
                details=details,
                handled_by=self._handled_by,
            )
            self._call(statement, ids)

    def reject(self, message: Message, reason: str) -> None:
        """Finish an invalid message; it is never delivered again."""
        self.settle({message: Rejected(reason)})

    def release(
        self,
        messages: Collection[Message],
        *,
        delay: timedelta = timedelta(0),
        count_attempt: bool = True,
        details: str | None = None,
        failure: Mapping[str, Any] | None = None,
        back_off: bool = False,
    ) -> None:
        """Give messages back to the queue: at once, after `delay`, or with `back_off` after the back-off of the queue.

        A message whose last attempt this was is archived as failed, unless `count_attempt` is False.
        """
        if ids := _ids(messages):
            statement = verbs.release(
                self._require_token(),
                ids,
                delay=delay,
                count_attempt=count_attempt,
                details=details,
                failure=failure,
                back_off=back_off,
            )
            self._call(statement, ids)

    def release_unstarted(self) -> int:
        """Give back all that is still held, without counting an attempt, and return how many messages that were."""
        return self._end(_uncounted)

    def release_astray(self, details: str) -> int:
        """Give back all that is still held, after the back-off, as an attempt; return how many messages that were."""
        return self._end(lambda token, ids: verbs.release(token, ids, details=details, back_off=True))

    def give_back(self, conn: psycopg.Connection[Any]) -> None:
        """Settle the handled messages, and release those that were not begun, without counting an attempt.

        To be called from another thread, with a connection of its own, while a handler does not return.
        """
        with self._calling:
            # A copy, because the handler may return meanwhile.
            handled = {id_: outcome for id_, outcome in self.handled.copy().items() if id_ in self._held}
            if unstarted := self._held - self.in_hand - handled.keys():
                with suppress(LeaseLost):
                    self._run(conn, verbs.release(self._require_token(), unstarted, count_attempt=False), unstarted)
            self._settle(conn, handled, set())

    def give_up(self, conn: psycopg.Connection[Any], reason: str) -> None:
        """Release the messages in hand too, as an attempt; the handler that still works on them has lost the lease."""
        with self._calling:
            if held := frozenset(self._held):
                with suppress(LeaseLost):
                    self._run(conn, verbs.release(self._require_token(), held, details=reason), held)
                self.lost |= held

    def end_transaction(self) -> bool:
        """Roll back what a handler left open on the connection, and return whether that was anything.

        What settles messages would be part of it, and be undone with it.
        """
        conn = self._conn
        # Not during a renewal, which behind a pooler has a transaction of its own.
        with self._calling:
            end_statement(conn)
            open_ = conn.pgconn.transaction_status in _OPEN
            if not open_ and (conn.autocommit or conn.closed):
                return False
            # On a broken connection whoever uses it next finds out.
            with suppress(psycopg.Error):
                conn.rollback()
                conn.autocommit = True
            return True

    def settle(self, outcomes: Mapping[Message, Outcome | None], *, only_held: bool = False) -> None:
        """Give each message its outcome, where None is success.

        Makes one archive call, and one release call per kind of retry. An outcome that cannot be kept, such as an
        output of more than 64 kB or a delay of years, archives its own message as failed with the reason, and no
        other; `unkept` has the id. LeaseLost has the ids of those that were lost; it is raised after the others were
        settled. `only_held` leaves out messages that are settled or known to be lost when the call is made. What is no
        outcome is an InvalidOutcome, and nothing is settled.
        """
        if not only_held:  # the loop has checked what its handler returned
            for message, outcome in outcomes.items():
                if outcome is not None:
                    checked(message, outcome)
        lost: set[int] = set()
        with self._calling:
            wanted = {message.id: outcome for message, outcome in outcomes.items()}
            if only_held:
                wanted = {id_: outcome for id_, outcome in wanted.items() if id_ in self._held}
            self._settle(self._conn, wanted, lost)
        if lost:
            raise LeaseLost(lost)

    def exchange(
        self, outcomes: Mapping[int, Outcome | None], intake: Intake, max_messages: int
    ) -> list[Message] | None:
        """Settle the last messages of this lease and lease others in one call; return those, or None if it cannot.

        It cannot if the lease also holds other messages, or one is to be retried. Then nothing has happened. `lost` has
        the ids of those that were lost; the others are archived.
        """
        finals = {id_: outcome for id_, outcome in outcomes.items() if not isinstance(outcome, Retry)}
        if len(finals) < len(outcomes) or self._token is None:
            return None
        with self._calling:
            # Nobody began the others, or somebody next to the handler has settled some of these.
            if self._held != finals.keys():
                return None
            try:
                exchanged = intake.exchange(self._token, finals, max_messages)
            except (PgQueueError, psycopg.Error):
                if self._conn.closed:
                    raise
                # What refused it, such as an outcome or a queue that is paused now, shows in a call of its own.
                return None
            if exchanged is None:
                return None
            lost, messages = exchanged
            self.lost |= lost
            self._held.clear()
        return messages

    def _settle(self, conn: psycopg.Connection[Any], outcomes: Mapping[int, Outcome | None], lost: set[int]) -> None:
        within = conn.pgconn.transaction_status == TransactionStatus.INTRANS
        # What is plain nobody refuses: no two round trips for it.
        guard = partial(savepoint, conn) if within and not all(map(is_plain, outcomes.values())) else nullcontext
        try:
            for ids, statement in settlement(self._token, outcomes, handled_by=self._handled_by) if self._token else ():
                with guard():
                    try:
                        self._run(conn, statement, ids)
                    except LeaseLost as error:
                        lost.update(error.ids)
        except Exception as error:
            # Nothing can follow an error of the server in a transaction without a savepoint.
            if not _is_refusal(error) or conn.info.transaction_status is TransactionStatus.INERROR:
                raise
            self._settle_apart(conn, {id_: outcomes[id_] for id_ in outcomes if id_ in self._held}, lost, error)

    def _settle_apart(
        self,
        conn: psycopg.Connection[Any],
        outcomes: Mapping[int, Outcome | None],
        lost: set[int],
        error: Exception,
    ) -> None:
        """Settle by halves what one call refused, so that only the outcome that caused it is replaced."""
        ids = list(outcomes)
        if len(ids) > 1:
            for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
                self._settle(conn, {id_: outcomes[id_] for id_ in half}, lost)
            return
        for id_ in ids:
            # It was replaced before: the refusal is not about the outcome.
            if id_ in self.unkept:
                raise error
            kind = type(outcomes[id_]).__name__
            if not self.unkept:
                # The first of a lease, because its others are likely to be like it.
                log.warning("the %s of message %s cannot be kept: it is archived as failed", kind, id_)
            self.unkept.add(id_)
            # The text of other errors may quote a body.
            reason = str(error) if isinstance(error, PgQueueError) else type(error).__name__
            try:
                self._settle(conn, {id_: Failed(f"its {kind} cannot be kept: {reason}")}, lost)
            except BaseException:
                # Whoever tries again begins with the outcome that cannot be kept.
                self.unkept.discard(id_)
                raise

    def _end(self, statement: Callable[[UUID, Collection[int]], Statement[Any]], besides: Collection[int] = ()) -> int:
        """Make a call for all that is held when it is made: another thread may have given some back until then."""
        with self._calling:
            if ids := sorted(self._held.difference(besides)):
                self._run(self._conn, statement(self._require_token(), ids), ids)
            return len(ids)

    def _call(self, statement: Statement[Any], settled: Collection[int]) -> None:
        # A renewal that ran at the same time would find the messages that are settled here gone, and call them lost.
        with self._calling:
            self._run(self._conn, statement, settled)

    def _run(self, conn: psycopg.Connection[Any], statement: Statement[Any], settled: Collection[int]) -> None:
        try:
            run(conn, statement)
        except LeaseLost as error:
            self.lost.update(error.ids)
            self._held.difference_update(settled, error.ids)
            raise
        self._held.difference_update(settled)

    def _length(self) -> timedelta:
        if self._lease_for is None:
            self._lease_for = run(self._conn, verbs.lease_policy(self.messages[0].queue_name)).lease_for
        return self._lease_for

    def _require_token(self) -> Any:
        if self._token is None:
            raise ValueError("this lease holds no messages")
        return self._token


def _uncounted(token: UUID, ids: Collection[int]) -> Statement[list[int]]:
    return verbs.release(token, ids, count_attempt=False)


def _is_refusal(error: Exception) -> bool:
    """Return whether an outcome may be the reason: the database refused it, or its conversion raised whatever."""
    return isinstance(error, InvalidArgument | InvalidMessage) or not isinstance(error, PgQueueError | psycopg.Error)


def _ids(messages: Collection[Message]) -> list[int]:
    return [message.id for message in messages]
