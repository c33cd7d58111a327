"""What all leases are: the ids that are held under one token, renewed, settled with outcomes, or released."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import is_free, run
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    PgQueueError,
)
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    Failed,
    Outcome,
    Rejected,
    Retry,
    Success,
    class_name,
    describe,
    end_of,
    is_plain,
    loggable,
    text_of,
)
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)

T = TypeVar("T")
OPEN: Final = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
# Settling each message at once would cost a commit for each; settling only at the end of a lease would let a killed
# consumer of slow messages repeat them all.
_SETTLE_EVERY: Final = 1.0  # seconds


class LeaseBase:
    """What one token holds, by its ids, until it is settled or known to be lost; a `Lease` has the messages, too.

    The holder gathers outcomes in `handled`, and settles them together: about once a second, and at the end.

    :param attempts: by id, the attempt that this is; after the last one, `max_attempts`, a retry archives as failed.
    :param counts: how messages with gathered outcomes ended is added here.
    """

    _extension = staticmethod(verbs.extend)

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        lock_token: UUID | None,
        ids: Collection[int],
        *,
        lease_for: Duration | None = None,
        handled_by: str | None = None,
        attempts: Mapping[int, int] | None = None,
        max_attempts: int | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self._conn = conn
        self._token = lock_token
        self._held = set(ids)
        self._lease_for = None if lease_for is None else as_timedelta(lease_for)
        self._handled_by = handled_by
        self._attempts = attempts or {}
        self._max_attempts = max_attempts
        self.lost: set[int] = set()
        self.unstored: set[int] = set()
        self.stored = False
        self.handled: dict[int, Outcome] = {}
        self.counts = Counter[str]() if counts is None else counts
        self.in_doubt = False
        self._settled_at = time.monotonic()
        self._calling = threading.Lock()

    @property
    def held_ids(self) -> frozenset[int]:
        """The ids of the messages that are neither settled nor known to be lost."""
        return frozenset(self._held)

    def renew(self) -> bool:
        """Extend the lease of what is still held, and log what was lost; return False, with a warning, if it failed."""
        try:
            self.extend()
        except LeaseLost as error:
            # Logged without the fix, because this code does what the fix says.
            log.warning("%s; another consumer may have them now", error.problem)
        except (PgQueueError, psycopg.Error) as error:
            log.warning("could not extend the lease of %s: %s", quantity(len(self._held)), type(error).__name__)
            return False
        return True

    def extend(self, lease_for: Duration | None = None) -> None:
        """Extend the lease of what is still held to `lease_for` from now. LeaseLost has the ids that were lost."""
        with self._calling:
            if (held := frozenset(self._held)) and not is_free(self._conn):
                raise ConnectionFailed(
                    "a statement of the handler has the connection", "Let it end before the lease does."
                )
            if held:
                statement = self._extension(
                    self._require_token(), held, lease_for=self._length() if lease_for is None else lease_for
                )
                # A rollback would undo it; a statement that runs now may be part of a transaction, too.
                self.in_doubt = self._conn.pgconn.transaction_status in (*OPEN, TransactionStatus.ACTIVE)
                self._run(self._conn, statement, ())
                self.in_doubt |= self._conn.pgconn.transaction_status in OPEN

    def gather(self, id_: int, outcome: Outcome) -> None:
        """Settle the message with this outcome, later."""
        # Kept here, because another thread settles it if the handler hangs.
        self.handled[id_] = outcome

    def is_due(self) -> bool:
        """Return whether the last settlement was at least a second ago."""
        return time.monotonic() >= self._settled_at + _SETTLE_EVERY

    def settle_handled(self) -> list[Outcome]:
        """Settle the gathered outcomes and count them; return those that could not be stored.

        `stored` is True from then on if any of them was stored that is not a retry. Those that were lost are logged:
        another consumer has them now, or another session ended them, which must not end the loop.
        """
        self._settled_at = time.monotonic()
        if not self.handled:
            return []
        with self._calling:
            held = {id_: outcome for id_, outcome in self.handled.items() if id_ in self._held}
            self._settle(self._conn, held)
        log_lost(self.lost.intersection(held))
        return self._count_handled()

    def leave(self, id_: int, limit: timedelta) -> None:
        """Stop renewing the message of a call that hangs, or archive it after its last attempt."""
        if not self._is_last(id_):
            self._held.discard(id_)
            self.counts["timed_out"] += 1
            return
        statement = partial(
            verbs.archive,
            result="lock_expired",
            details=f"the call took longer than {limit}",
            handled_by=self._handled_by,
        )
        with suppress(LeaseLost):
            self._call(statement, [id_])
        self.counts["lost" if id_ in self.lost else "lock_expired"] += 1

    def wind_up(self, error: BaseException, *, begun: Collection[int]) -> None:
        """Settle what was handled before an error, and give the rest back, with an attempt of those that were begun."""
        try:
            # Handled messages have had their effect: a later error must not deliver them again, nor must a first call
            # that failed, for example after lock_timeout.
            self.settle_handled()
        except (PgQueueError, psycopg.Error) as failed:
            # The first error matters more: SystemExit would become a lost connection, which a worker survives.
            what = loggable(class_name(error))
            log.warning("could not settle what was handled before %s (%s)", what, type(failed).__name__)
            self._count({id_: outcome for id_, outcome in self.handled.items() if id_ not in self._held})
        finally:
            self.release_after(error, begun=begun)

    def release_after(self, error: BaseException, *, begun: Collection[int] | None = None) -> None:
        """Release what is still held because its holder raised, as an attempt; if that fails, only log a warning.

        With `begun` it is an attempt of these ids alone, and those with an outcome in `handled` stay held: they are
        settled by `give_back`, or delivered again when the lease ends.
        """
        kind = class_name(error)
        try:
            handled: set[int] = set()
            if begun is not None:
                handled.update(self.handled)
                self._call(_uncounted, besides=handled.union(begun))
            text, failure = f"{kind}: {text_of(error)}"[:4000], describe(error)
            self._call(partial(verbs.release, details=text, failure=failure), besides=handled)
        except (PgQueueError, psycopg.Error) as failed:
            # The caller's error matters more, and a broken connection is the usual reason for both errors.
            log.warning(
                "could not release %s after %s (%s): delivered again when the lease ends",
                quantity(len(self._held)),
                loggable(kind),
                type(failed).__name__,
            )

    def end(self, id_: int, outcome: Outcome | None) -> str:
        """Return how a message that was settled with this outcome ended."""
        if id_ in self.lost:
            return "lost"
        return "failed" if id_ in self.unstored else end_of(outcome, last=self._is_last(id_))

    def _is_last(self, id_: int) -> bool:
        return self._max_attempts is not None and self.attempt(id_) >= self._max_attempts

    def attempt(self, id_: int) -> int:
        """Return which attempt of a message this is, as far as the holder knows it."""
        return self._attempts.get(id_, 1)

    def _count_handled(self) -> list[Outcome]:
        """Count the gathered outcomes, which are settled by now, and return those that could not be stored."""
        # Cleared only now, so that an error leaves them for another try.
        handled, self.handled = self.handled, {}
        self._count(handled)
        unstored = self.unstored.intersection(handled)
        self.stored = self.stored or any(
            id_ not in unstored and not isinstance(outcome, Retry) for id_, outcome in handled.items()
        )
        return [handled[id_] for id_ in unstored]

    def _count(self, outcomes: Mapping[int, Outcome]) -> None:
        none_lost = not self.lost
        # Most are plain, and a call for each would take longer.
        self.counts.update(
            "success" if none_lost and outcome is PLAIN else self.end(id_, outcome) for id_, outcome in outcomes.items()
        )

    def _settle(self, conn: psycopg.Connection[Any], outcomes: Mapping[int, Outcome | None]) -> None:
        """Settle messages; `lost` has those that were lost, and `unstored` those whose outcome was replaced."""
        within = conn.pgconn.transaction_status == TransactionStatus.INTRANS
        # A savepoint, so that the transaction of the caller survives a refusal. A plain outcome is never refused, so it
        # needs no second round trip. LeaseLost must not leave a savepoint: that would undo what took effect.
        guard = conn.transaction if within and not all(map(is_plain, outcomes.values())) else nullcontext
        try:
            calls = _settlement(self._token, outcomes, handled_by=self._handled_by) if self._token else ()
            for ids, statement in calls:
                with guard(), suppress(LeaseLost):
                    self._run(conn, statement, ids)
        except Exception as error:
            # Nothing can follow an error of the server in a transaction without a savepoint.
            if not _is_refusal(error) or conn.info.transaction_status is TransactionStatus.INERROR:
                raise
            self._settle_apart(conn, {id_: outcomes[id_] for id_ in outcomes if id_ in self._held}, error)

    def _settle_apart(
        self, conn: psycopg.Connection[Any], outcomes: Mapping[int, Outcome | None], error: Exception
    ) -> None:
        """Settle by halves what one call refused, so that only the outcome that caused it is replaced."""
        ids = list(outcomes)
        if len(ids) > 1:
            for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
                self._settle(conn, {id_: outcomes[id_] for id_ in half})
            return
        for id_ in ids:
            # The outcome was replaced before, so the refusal is not about it.
            if id_ in self.unstored:
                raise error
            kind = type(outcomes[id_]).__name__
            if not self.unstored:
                # The first of a lease, because its others are likely to be like it.
                log.warning("message %s ends as failed: its %s cannot be kept", id_, kind)
            self.unstored.add(id_)
            # The text of other errors may quote a body.
            reason = str(error) if isinstance(error, PgQueueError) else type(error).__name__
            try:
                self._settle(conn, {id_: Failed(f"its {kind} cannot be kept: {reason}")})
            except BaseException:
                # A further try begins with the outcome that cannot be stored.
                self.unstored.discard(id_)
                raise

    def _call(
        self,
        statement: Callable[[UUID, Collection[int]], Statement[Any]],
        ids: Collection[int] | None = None,
        *,
        besides: Collection[int] = (),
    ) -> int:
        """Make a call for these ids, or for all ids held by then; return how many it was made for."""
        # A renewal at the same time would find the messages that are settled here gone, and call them lost. Another
        # thread may also have given some back by then.
        with self._calling:
            ids = sorted(self._held.difference(besides)) if ids is None else ids
            if ids:
                self._run(self._conn, statement(self._require_token(), ids), ids)
            return len(ids)

    def _run(self, conn: psycopg.Connection[Any], statement: Statement[T], settled: Collection[int]) -> T:
        try:
            found = run(conn, statement)
        except LeaseLost as error:
            self.lost.update(error.ids)
            self._held.difference_update(settled, error.ids)
            raise
        self._held.difference_update(settled)
        return found

    def _length(self) -> timedelta:
        if self._lease_for is None:
            raise ValueError("this lease is not renewed")
        return self._lease_for

    def _require_token(self) -> UUID:
        if self._token is None:
            raise ValueError("this lease holds no messages")
        return self._token


def log_lost(ids: Collection[int]) -> None:
    """Log that the lease of these messages had ended."""
    if ids:
        log.warning("%s; they are delivered again, unless somebody else ended them", LeaseLost(ids).problem)


def _uncounted(token: UUID, ids: Collection[int]) -> Statement[list[int]]:
    return verbs.release(token, ids, count_attempt=False)


def _is_refusal(error: Exception) -> bool:
    """Return whether an outcome may be the reason: the database refused it, or its conversion raised any error."""
    return isinstance(error, InvalidArgument | InvalidMessage) or not isinstance(error, PgQueueError | psycopg.Error)


def _settlement(
    lock_token: UUID, outcomes: Mapping[int, Outcome | None], *, handled_by: str | None = None
) -> Iterator[tuple[list[int], Statement[list[int]]]]:
    """Yield the calls that settle leased messages, each with the ids that it settles; an outcome of None is success.

    One call archives, and one call per kind of retry releases. A call that raises LeaseLost has settled the ids that
    were not lost.
    """
    retries: dict[tuple[object, ...], tuple[Retry, list[int]]] = {}
    finals: dict[int, Success | Rejected | Failed] = {}
    for id_, outcome in outcomes.items():
        if isinstance(outcome, Retry):
            # Grouped by the text that is sent, because a dict has no hash.
            failure = None if outcome.failure is None else to_json(outcome.failure)
            kind = (outcome.delay, outcome.details, outcome.count_attempt, failure)
            retries.setdefault(kind, (outcome, []))[1].append(id_)
        else:
            finals[id_] = outcome or PLAIN
    if finals:
        special = {id_: outcome for id_, outcome in finals.items() if not is_plain(outcome)}
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
