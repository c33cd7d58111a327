"""The task of a drain: consumes until no message is left for it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import fetch, run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.lease_base import LeaseBase
from airflow_provider_pgqueue.core.consumer.portion import Portion, tenths
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.consumer.rows import selecting
from airflow_provider_pgqueue.core.consumer.time_limit import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    HandlerBroken,
    InvalidArgument,
    PgQueueError,
    refused,
    text_without_values,
)
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.core.message import TEXTS, Row
from airflow_provider_pgqueue.core.outcome import PLAIN, Retry, concerns_message, outcome_of, unfinished
from airflow_provider_pgqueue.export.connection import Database, has_no_room
from airflow_provider_pgqueue.spark.pipelines.drain.outcomes import outcomes_of

log = logging.getLogger(__name__)

BatchFunction = Callable[[Any], Any]

_POLL_EVERY: Final = 0.5  # seconds between two polls while another attempt works
_MESSAGES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("message", pa.string()),
        ("reference", pa.string()),
        ("attempts", pa.int32()),
        ("headers", pa.string()),
        *((name, pa.string()) for name in TEXTS if name != "reference"),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
_ATTEMPTS: Final = _MESSAGES.get_field_index("attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The task of a drain; pickled into each of them.

    `holder` begins the name that its leases and results carry.
    """

    database: Database
    queue: str
    function: str | BatchFunction
    parallelism: int
    batch_size: int
    lease_for: timedelta | None
    max_messages: int | None
    give_up_after: int
    holder: str
    stop_key: int

    def run(self, part: int) -> Counter[str]:
        """Consume, and return how many messages were leased and how they ended."""
        counts: Counter[str] = Counter()
        try:
            self._consume(part, counts)
        except psycopg.Error as error:
            raise PgQueueError(f"{type(error).__name__} {error.sqlstate}: {text_without_values(error)}") from None
        return counts + Counter(leased=counts.total())

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new session that names the queue."""
        return self.database.connect(f"pgqueue drain {self.queue}"[:63], patient=True)

    def backlog(self, conn: psycopg.Connection[Any], part: str = "") -> Row:
        """Count what is left: `ready`, `held` by the run, or by a part of it, and `waiting` for a time or for others.

        QueueNotFound if there is no such queue.
        """
        return run(conn, verbs.run_backlog(f"{self.holder}{part}", self.queue))

    def is_stopped(self, conn: psycopg.Connection[Any]) -> bool:
        """Return whether the driver asks the tasks to stop: it then holds an advisory lock under a key of this run."""
        row = conn.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", [self.stop_key]).fetchone()
        return row is not None and not row[0]

    def _consume(self, part: int, counts: Counter[str]) -> None:
        with ExitStack() as stack:
            try:
                conn, attempt = stack.enter_context(self.connect()), _attempt()
            except ConnectionFailed as error:
                if not has_no_room(error):
                    raise
                # An error would also end the tasks that have the connections, in the middle of a batch.
                log.warning("a task of the drain of queue %s found no connection: the others do its work", self.queue)
                return
            if self.max_messages is not None and attempt > 0:
                # Only the archive knows how much of its share the first attempt took: the next round asks it.
                self._await_twin(conn, part)
                return
            wanted = self._wanted(part)
            consuming = Consuming(self, conn, f"{self.holder}{part}.{attempt}:{process_name()}", counts, stack)
            while not self.is_stopped(conn):
                consuming.drain(wanted)
                if counts.total() == wanted or not self._has_twin(conn, part):
                    break
                time.sleep(_POLL_EVERY)

    def _await_twin(self, conn: psycopg.Connection[Any], part: int) -> None:
        """Wait until no other attempt holds messages in two polls: between two batches it holds none in one poll."""
        alone = 0
        while alone < 2 and not self.is_stopped(conn):
            time.sleep(_POLL_EVERY)
            alone = 0 if self._has_twin(conn, part) else alone + 1

    def _has_twin(self, conn: psycopg.Connection[Any], part: int) -> bool:
        """Return whether another attempt of this task still holds messages.

        Spark starts a second attempt of a slow task, and kills the slow one when either is done. So an attempt with
        nothing to do waits until the other one ends, or loses its leases, which leaves it something to do.
        """
        return bool(self.backlog(conn, f"{part}.")["held"])

    def _wanted(self, part: int) -> int | None:
        if self.max_messages is None:
            return None
        whole, rest = divmod(self.max_messages, self.parallelism)
        return whole + (part < rest)


class Consuming:
    """Takes, handles and settles batches, and counts in `counts` how their messages ended.

    :param stack: closes what it opens.
    """

    def __init__(
        self, share: Share, conn: psycopg.Connection[Any], handled_by: str, counts: Counter[str], stack: ExitStack
    ) -> None:
        policy = run(conn, verbs.lease_policy(share.queue))
        self._share = share
        self._conn = conn
        self._handled_by = handled_by
        self._counts = counts
        self._function = load_function(share.function)
        self._lease_for = share.lease_for or policy.lease_for
        self._portion = Portion(share.batch_size)
        self._caller = stack.enter_context(closing(Caller(policy.handler_timeout)))
        self._renewal = stack.enter_context(closing(Renewal()))
        self._breaker = Breaker(share.queue, share.give_up_after)

    def drain(self, most: int | None) -> None:
        """Handle batches until nothing is ready, `most` were taken in all, or the driver asks to stop."""
        while not self._share.is_stopped(self._conn):
            size = self._portion.size
            if most is not None and (size := min(size, most - self._counts.total())) == 0:
                break
            lease = self._lease(size)
            if lease is None:
                break
            self._renewal.hold(lease, self._lease_for)
            self._handle(lease)

    def _lease(self, size: int) -> TableLease | None:
        """Lease messages; None if nothing was ready.

        JSON comes as its text and by columns: an object for each message would cost more than the server does.
        """
        given = {
            "queue_name": self._share.queue,
            "max_messages": size,
            "lease_for": self._lease_for,
            "locked_by": self._handled_by,
        }
        fix = partial(refused, verb="lease", queue_name=self._share.queue)
        rows = fetch(self._conn, tuple_row, selecting("lease_rows", _MESSAGES.names), given, fix=fix)
        if not rows:
            return None
        *_, max_attempts, lock_token = rows[0]
        attempts = {row[0]: row[_ATTEMPTS] for row in rows}
        del rows[self._portion.fit(self._conn, lock_token, attempts, max_attempts) :]
        return TableLease(self._conn, rows, lease_for=self._lease_for, handled_by=self._handled_by, counts=self._counts)

    def _handle(self, lease: TableLease) -> None:
        """Call the function, and settle the outcomes of each second together, and the rest at the end."""
        try:
            pieces = [lease.table]
            while pieces:
                piece = pieces.pop()
                pieces += self._call(lease, piece, piece["id"].to_pylist())
                if lease.is_due():
                    self._settle(lease)
            self._settle(lease)
        except BaseException as error:
            if not isinstance(error, Exception | KeyboardInterrupt):
                # The function ends the process: the attempt counts, or the next process would end on that message too.
                retry = unfinished(error)
                for id_ in lease.held_ids - lease.handled.keys():
                    lease.gather(id_, retry)
            # An error of a call counts as an attempt, or a message that causes one would be delivered forever.
            own_mistake = isinstance(error, InvalidArgument | HandlerBroken) or not isinstance(error, Exception)
            lease.wind_up(error, begun=() if own_mistake else lease.held_ids)
            raise

    def _settle(self, lease: TableLease) -> None:
        unstored = lease.settle_handled()
        self._breaker.record_settled(unstored=unstored, stored=lease.stored)

    def _call(self, lease: TableLease, piece: pa.Table, ids: list[int]) -> list[pa.Table]:
        """Call the function, and gather the outcomes; return smaller pieces for which to call it instead."""
        try:
            returned = self._caller.call(self._function, piece, ids)
        except BaseException as error:
            if not concerns_message(error):
                raise
            if len(ids) > 1:
                return tenths(piece, error)
            self._gather_error(lease, ids[0], error)
        else:
            outcomes = outcomes_of(returned, ids)
            for id_, outcome in outcomes.items():
                lease.gather(id_, outcome or PLAIN)
            if not all(isinstance(outcome, Retry) for outcome in outcomes.values()):
                self._breaker.record_success()
        return []

    def _gather_error(self, lease: TableLease, id_: int, error: BaseException) -> None:
        if isinstance(error, TimeIsUp):
            lease.leave(id_, error.limit)
            self._breaker.record_hanging(id_, error)
        else:
            outcome = outcome_of(error)
            lease.gather(id_, outcome)
            self._breaker.record(id_, outcome, attempts=lease.attempt(id_))


class TableLease(LeaseBase):
    """A lease whose messages are a table."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        rows: list[tuple[Any, ...]],
        *,
        lease_for: timedelta,
        handled_by: str,
        counts: Counter[str],
    ) -> None:
        *self._columns, (most, *_), (token, *_) = zip(*rows, strict=True)
        ids, attempts = self._columns[0], self._columns[_ATTEMPTS]
        super().__init__(
            conn,
            token,
            ids,
            lease_for=lease_for,
            handled_by=handled_by,
            attempts=dict(zip(ids, attempts, strict=True)),
            max_attempts=most,
            counts=counts,
        )

    @cached_property
    def table(self) -> pa.Table:
        """The table that the function gets."""
        # Made when it is asked for, because the lease is renewed by then: the imports for the first table take long.
        return pa.table(self._columns, schema=_MESSAGES)


def _attempt() -> int:
    """Return which attempt of its task this is; the first one is 0, and there is one outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0
