"""Messages that are held for a while: renewed while the holder works, settled or given back at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self, overload
from uuid import UUID

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import LeaseLost, PgQueueError
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import (
    Failed,
    Outcome,
    Rejected,
    Retry,
    Success,
    describe,
)
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)


class Lease(Sequence[Message]):
    """The messages of one `lease` call, in the order to handle them.

    As a context manager it extends the leases in a thread while it is open. On a clean exit what was not settled is
    archived as success; on an exception it is released, and the attempt counts. A process that dies loses nothing:
    the leases expire.

    `lost` has the ids that a renewal or a call found lost: stop working on them.

    :param conn: an autocommit connection that nothing else blocks; the lease uses it until it is closed.
    :param lease_for: how long each renewal lasts; a third of it is the interval between renewals.
    :param renewal: who renews it, for a loop of many leases; by default a thread of its own.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        messages: Sequence[Message],
        *,
        lease_for: timedelta,
        handled_by: str | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        self._conn = conn
        self._messages = tuple(messages)
        self._lease_for = lease_for
        self._handled_by = handled_by
        self._token = messages[0].lock_token if messages else None
        self._held = {message.id for message in messages}
        self.lost: set[int] = set()
        self._calling = threading.Lock()
        self._renewal = renewal
        self._own_renewal = ExitStack()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Lease of {quantity(len(self))}, {len(self._held)} held>"

    @property
    def held(self) -> list[Message]:
        """The messages that are neither settled nor known to be lost."""
        return [message for message in self._messages if message.id in self._held]

    def __enter__(self) -> Self:
        if self._held and self._conn.autocommit:
            renewal = self._renewal or self._own_renewal.enter_context(Renewal(self._lease_for))
            renewal.hold(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._own_renewal.close()
        if kind is None:
            self.archive(self.held)
            return
        try:
            failure = describe(error) if error else None
            self.release(self.held, details=f"{kind.__name__}: {error}", failure=failure)
        except PgQueueError:
            # The error of the caller matters more; the leases expire by themselves.
            log.warning(
                "could not release %s after %s",
                quantity(len(self._held)),
                kind.__name__,
                exc_info=True,
            )

    def renew(self) -> None:
        """Extend what is held; say in the log what was lost or went wrong."""
        try:
            self.extend()
        except LeaseLost as error:
            log.warning("%s", error)
        except PgQueueError as error:
            log.warning("could not extend the lease of %s: %s", quantity(len(self._held)), type(error).__name__)

    def extend(self, lease_for: timedelta | None = None) -> None:
        """Make the leases that are held last `lease_for` from now; LeaseLost names those that were lost."""
        with self._calling:
            if held := frozenset(self._held):
                statement = verbs.extend(self._require_token(), held, lease_for=lease_for or self._lease_for)
                self._run(statement, ())

    def archive(
        self,
        messages: Collection[Message],
        *,
        result: str = "success",
        details: str | None = None,
    ) -> None:
        """Finish messages with one result; LeaseLost names those that were lost, the others are archived."""
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
        """Give messages back, now, after `delay` or after the back-off of the queue.

        A counted last attempt is archived as failed.
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

    def settle(self, outcomes: Mapping[Message, Outcome | None]) -> None:
        """Give each message its outcome (None is success): one archive call, and one release per kind of retry.

        LeaseLost names all that were lost, after the others were settled.
        """
        lost: set[int] = set()
        by_id = {message.id: outcome for message, outcome in outcomes.items()}
        for ids, statement in settlement(self._require_token(), by_id, handled_by=self._handled_by) if by_id else ():
            try:
                self._call(statement, ids)
            except LeaseLost as error:
                lost.update(error.ids)
        if lost:
            raise LeaseLost(lost)

    def _call(self, statement: Statement[Any], settled: Collection[int]) -> None:
        # A renewal that runs meanwhile would take what is settled here for lost.
        with self._calling:
            self._run(statement, settled)

    def _run(self, statement: Statement[Any], settled: Collection[int]) -> None:
        try:
            run(self._conn, statement)
        except LeaseLost as error:
            self.lost.update(error.ids)
            self._held.difference_update(settled, error.ids)
            raise
        self._held.difference_update(settled)

    def _require_token(self) -> Any:
        if self._token is None:
            raise ValueError("this lease holds no messages")
        return self._token


def settlement(
    lock_token: UUID, outcomes: Mapping[int, Outcome | None], *, handled_by: str | None = None
) -> Iterator[tuple[list[int], Statement[list[int]]]]:
    """Give the calls that give leased messages their outcomes (None is success), with the ids that each is about.

    One call archives, and one releases for each kind of retry. Each raises LeaseLost after the rest of it took effect.
    """
    retries: dict[str, tuple[Retry, list[int]]] = {}
    finals: dict[int, Success | Rejected | Failed] = {}
    for id_, outcome in outcomes.items():
        if isinstance(outcome, Retry):
            retries.setdefault(repr(outcome), (outcome, []))[1].append(id_)
        else:
            finals[id_] = outcome or Success()
    if finals:
        special = {id_: outcome for id_, outcome in finals.items() if outcome != Success()}
        yield list(finals), verbs.archive(lock_token, list(finals), outcomes=special, handled_by=handled_by)
    for retry, ids in retries.values():
        yield (
            ids,
            verbs.release(
                lock_token,
                ids,
                delay=retry.delay or timedelta(0),
                count_attempt=retry.count_attempt,
                details=retry.details,
                failure=retry.failure,
                back_off=retry.delay is None,
            ),
        )


def _ids(messages: Collection[Message]) -> list[int]:
    return [message.id for message in messages]


class Renewable(Protocol):
    """What a renewal extends; it must not raise."""

    def renew(self) -> None:
        """Extend what is still held."""


class Renewal:
    """A thread that renews what it was given last, every third of `lease_for`, while the context is open.

    The thread starts with the first lease, and one is enough for all the leases that a loop takes after another.
    """

    def __init__(self, lease_for: timedelta) -> None:
        self._interval = lease_for.total_seconds() / 3
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Renewable | None = None

    def hold(self, lease: Renewable) -> None:
        """Renew this one from now on, in place of the one before."""
        self._lease = lease
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pgqueue-renewal", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the thread, and wait for a renewal that is under way."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if self._lease is not None:
                self._lease.renew()
