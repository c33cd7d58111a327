"""What one task of a drain does: consume, until nothing is left for it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import psycopg
import pyarrow as pa

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.breaker import Breaker, failure_of
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidArgument, InvalidMessage, PgQueueError
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.core.message import LeasePolicy, Message
from airflow_provider_pgqueue.core.outcome import Rejected, Retry, describe, outcome_of
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.renewal import Renewal
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.drain.held import TableLease, held
from airflow_provider_pgqueue.spark.source.outcomes import Outcomes, archive, outcomes_of

log = logging.getLogger(__name__)

BatchFunction = Callable[[Any], Any]

_LOOK_EVERY: Final = 0.5  # seconds, while a twin works
_SETTLE_EVERY: Final = 1.0  # seconds: a killed task repeats what it has not settled
_MOST_HANGING: Final = 10  # calls that may hang in this process before it stops


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left of a queue: ready to lease, held by a holder, and waiting for a moment or for others."""

    ready: int
    held: int
    waiting: int


def backlog(conn: psycopg.Connection[Any], holder: str, queue: str, topic: str | None = None) -> Backlog:
    """Count what is left, with what dead sessions had locked; QueueNotFound if there is no such queue."""
    run(conn, verbs.free_locked_batches(queue))
    return Backlog(**run(conn, verbs.run_backlog(holder, queue, topic=topic)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The task of a drain; pickled into each of them. `holder` begins the name that its leases and results carry."""

    database: Database
    queue: str
    function: str | BatchFunction
    parallelism: int
    batch_size: int
    lease_for: timedelta | None
    topic: str | None
    max_messages: int | None
    give_up_after: int
    transactional: bool
    holder: str
    stop_key: int

    def run(self, part: int) -> Counter[str]:
        """Consume, and return how many messages were leased and how they ended."""
        counts: Counter[str] = Counter()
        try:
            self._consume(part, counts)
        except psycopg.Error as error:
            # The driver appends DETAIL and CONTEXT, which may quote a body.
            raise PgQueueError(f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}") from None
        return counts + Counter(leased=counts.total())

    def _consume(self, part: int, counts: Counter[str]) -> None:
        function = load_function(self.function) if isinstance(self.function, str) else self.function
        attempt, name = _attempt(), f"pgqueue drain {self.queue}"[:63]
        with ExitStack() as stack:
            conn = stack.enter_context(self.database.connect(name))

            def stop() -> bool:
                return self._is_stopped(conn)

            if self.max_messages is not None and attempt > 0:
                # How much of its share the first attempt took, only the archive knows: the next round asks it.
                self._await_twin(conn, part, stop)
                return
            policy = run(conn, verbs.lease_policy(self.queue))
            policy = replace(policy, lease_for=self.lease_for or policy.lease_for)
            limit = policy.handler_timeout
            consuming = Consuming(
                self,
                conn,
                stack.enter_context(self.database.connect(name)) if self.transactional else None,
                policy,
                function,
                None if limit is None else stack.enter_context(Caller(limit)),
                stack.enter_context(closing(Renewal())),
                f"{self.holder}{part}.{attempt}:{process_name()}",
                Breaker(self.queue, self.give_up_after),
                counts,
            )
            wanted = self._wanted(part)
            while not stop():
                consuming.drain(wanted, stop)
                if counts.total() == wanted or not self._has_twin(conn, part):
                    break
                time.sleep(_LOOK_EVERY)

    def _await_twin(self, conn: psycopg.Connection[Any], part: int, stop: Callable[[], bool]) -> None:
        """Wait until another attempt holds nothing in two looks: between two batches it holds nothing in one."""
        alone = 0
        while not stop() and alone < 2:
            time.sleep(_LOOK_EVERY)
            alone = 0 if self._has_twin(conn, part) else alone + 1

    def _wanted(self, part: int) -> int | None:
        if self.max_messages is None:
            return None
        whole, rest = divmod(self.max_messages, self.parallelism)
        return whole + (part < rest)

    def _has_twin(self, conn: psycopg.Connection[Any], part: int) -> bool:
        """Return whether another attempt of this task still holds messages.

        Spark starts a second attempt of a slow task, and kills the slow one when either is done. So an attempt with
        nothing to do waits until the other one ends, or loses its leases, which leaves it something to do.
        """
        return backlog(conn, f"{self.holder}{part}.", self.queue, self.topic).held > 0

    def _is_stopped(self, conn: psycopg.Connection[Any]) -> bool:
        """Return whether the driver asks the tasks to stop: it then holds an advisory lock under a key of this run."""
        row = conn.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", [self.stop_key]).fetchone()
        return row is not None and not row[0]


@dataclass(frozen=True, slots=True)
class Consuming:
    """Takes, handles and settles batches, and counts how their messages ended.

    :param locking: the session whose transactions lock batches instead of leasing them, or None.
    :param caller: raises TimeIsUp when a call takes longer than its limit for each message; None sets no limit.
    """

    share: Share
    conn: psycopg.Connection[Any]
    locking: psycopg.Connection[Any] | None
    policy: LeasePolicy
    function: BatchFunction
    caller: Caller | None
    renewal: Renewal
    handled_by: str
    breaker: Breaker
    counts: Counter[str]

    def drain(self, most: int | None, stop: Callable[[], bool]) -> None:
        """Handle batches until nothing is ready, or `most` were taken in all."""
        while not stop() and (most is None or self.counts.total() < most):
            size = self.share.batch_size if most is None else min(self.share.batch_size, most - self.counts.total())
            done = self._in_a_transaction(self.locking, size) if self.locking is not None else None
            if done is None:
                done = self._leased(size)
            if not done:
                break

    def _arguments(self, size: int) -> dict[str, Any]:
        return {"queue_name": self.share.queue, "max_messages": size, "topic": self.share.topic}

    def _leased(self, size: int) -> bool:
        own = {"lease_for": self.share.lease_for, "locked_by": self.handled_by}
        messages = held(self.conn, "lease_rows", self._arguments(size) | own)
        if messages is None:
            return False
        lease = TableLease(self.conn, messages, lease_for=self.policy.lease_for, handled_by=self.handled_by)
        self.renewal.hold(lease, self.policy.lease_for)
        try:
            for outcomes in self._handled(lease):
                self.counts.update(lease.settle(outcomes))
        except BaseException as error:
            # An error of a call is an attempt, or a message that causes one would be delivered for ever.
            own_mistake = isinstance(error, InvalidArgument | HandlerBroken) or not isinstance(error, Exception)
            try:
                lease.give_back(count_attempt=not own_mistake)
            except (PgQueueError, psycopg.Error) as failed:
                log.warning("could not release what is left (%s): delivered again later", type(failed).__name__)
            raise
        return True

    def _handled(self, lease: TableLease) -> Iterator[Outcomes]:
        """Call the function, and give the outcomes gathered in each second, and the rest at the end."""
        gathered, due = Outcomes(), time.monotonic() + _SETTLE_EVERY
        try:
            for piece, outcomes in self._pieces(lease.messages.table):
                self._gather(gathered, lease, piece, outcomes)
                # While all fail alike, their outcomes may be taken back soon.
                if time.monotonic() >= due and not self.breaker.suspects:
                    yield gathered
                    gathered, due = Outcomes(), time.monotonic() + _SETTLE_EVERY
        except GeneratorExit:
            raise
        except HandlerBroken:
            # What failed comes later, so that those behind it come first next time.
            for id_, retry in gathered.retries.items():
                if failure_of(retry) is not None:
                    gathered.retries[id_] = replace(retry, count_attempt=False)
            yield gathered
            raise
        except BaseException as error:
            if not isinstance(error, Exception | KeyboardInterrupt):
                # The function ends the process: an attempt, or the next process would end on it too.
                retry = Retry(None, type(error).__name__, failure=describe(error))
                gathered.retries.update(dict.fromkeys(lease.held.difference(gathered.ids), retry))
            # What was handled has had its effect: it must not be delivered again because of what came after it.
            yield gathered
            raise
        yield gathered

    def _pieces(self, table: pa.Table) -> Iterator[tuple[pa.Table, Outcomes | Exception]]:
        """Give the batch in one piece or several, each with its outcomes; what it raises stands alone with its message.

        A function that raises is called again with each half of the batch, until the message that it raises on stands
        alone: its neighbours are not touched by it. So the function sees the neighbours again, about log2 of the batch
        times for one bad message. A piece on which its time is up comes with TimeIsUp, whole.
        """
        waiting = [table]
        while waiting:
            piece = waiting.pop()
            try:
                outcomes: Outcomes | Exception = self._outcomes(piece)
            except TimeIsUp as error:
                outcomes = error
            except Raised as raised:
                if len(piece) > 1:
                    middle = len(piece) // 2
                    log.debug("the function raised %r on %s: halving them", raised, quantity(len(piece)))
                    waiting += [piece.slice(middle), piece.slice(0, middle)]
                    continue
                outcomes = raised.error
            yield piece, outcomes

    def _outcomes(self, table: pa.Table) -> Outcomes:
        """Return the outcome of each message; InvalidArgument for something unusable, else what the function raises."""
        try:
            returned = self.caller.call(self.function, table, len(table)) if self.caller else self.function(table)
        except TimeIsUp:
            raise
        except Exception as error:
            raise Raised(error) from error
        return outcomes_of(returned, table.column("id").to_pylist())

    def _gather(self, gathered: Outcomes, lease: TableLease, piece: pa.Table, outcomes: Outcomes | Exception) -> None:
        if isinstance(outcomes, TimeIsUp):
            self._leave(lease, piece, outcomes)
            return
        if isinstance(outcomes, Outcomes):
            gathered.add(outcomes)
            self.breaker.note_fine(outcomes.ids)
            return
        message = _message(piece, self.share.queue, lease.messages.max_attempts)
        outcome = outcome_of(outcomes)
        if isinstance(outcome, Retry):
            gathered.retries[message.id] = outcome
        elif isinstance(outcome, Rejected):
            gathered.add(Outcomes([message.id], ["rejected"], [outcome.reason], [None]))
        self.breaker.note(message, outcome)

    def _leave(self, lease: TableLease, piece: pa.Table, why: TimeIsUp) -> None:
        # Renewed no longer, they are left to the end of their lease: the attempt counts.
        lease.held.difference_update(piece.column("id").to_pylist())
        self.counts["timed_out"] += len(piece)
        log.warning(
            "the function exceeded its time of %s on %s of queue %s: the lease is no longer renewed, and the call "
            "goes on in a thread that nobody waits for",
            why.limit,
            quantity(len(piece)),
            self.share.queue,
        )
        if why.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"{why.hanging} calls of the function of queue {self.share.queue!r} hang",
                "Start the process again, which ends them, and give what the function waits for a time-out.",
            )

    def _in_a_transaction(self, conn: psycopg.Connection[Any], size: int) -> bool | None:
        """Lock, handle and archive a batch in one transaction; None if it has to be leased instead.

        That is so if anything but a result comes of it: an exception, a retry, an output that cannot be kept, or too
        much time. Then nothing has happened, and under a lease each message gets what it deserves.
        """
        run(self.conn, verbs.free_locked_batches(self.share.queue))
        with conn.transaction() as transaction:
            messages = held(conn, "lock_ready_rows", self._arguments(size))
            if messages is None:
                return None  # a lease also finds what a sweep frees
            token = messages.lock_token
            # In another session, so that it stays if this one dies.
            run(self.conn, verbs.record_locked_batch(token, self.share.queue, messages.ids, self.handled_by))
            outcomes: Outcomes | None
            try:
                outcomes = self._outcomes(messages.table)
                if not outcomes.retries:
                    archive(conn, token, outcomes, self.handled_by)
            except (Raised, TimeIsUp, InvalidArgument, InvalidMessage) as error:
                log.debug("leasing a batch: %s", type(error).__name__)
                outcomes = None
            if outcomes is None or outcomes.retries:
                # Before the rollback, or somebody could take this for a death.
                run(self.conn, verbs.free_locked_batches(self.share.queue, lock_token=token))
                raise psycopg.Rollback(transaction)
        if outcomes is None or outcomes.retries:
            return None
        self.breaker.note_fine(outcomes.ids)
        self.counts.update(outcomes.results)
        return True


class Raised(Exception):
    """The function raised an `error`, and not whoever read what it returned. Its text names the class alone."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.error = error


def _message(piece: pa.Table, queue: str, max_attempts: int) -> Message:
    """Return the one message of a table, without its JSON."""
    (row,) = piece.drop_columns(["message", "headers"]).to_pylist()
    unknown: dict[str, Any] = {"body": None, "headers": None, "priority": 0, "requeues": 0}
    return Message(queue_name=queue, max_attempts=max_attempts, **unknown, **row)


def _attempt() -> int:
    """Return which attempt of its task this is; the first one is 0, and there is one outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0
