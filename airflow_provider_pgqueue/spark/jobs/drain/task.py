"""What one task of a drain does: consume, until nothing is left for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.spark.database import Database, leave_json
from airflow_provider_pgqueue.spark.jobs.drain.batches import Batches, BatchFunction, Form

_LOOK_EVERY: Final = 0.5  # seconds, while a twin works


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left of a queue: ready to lease, held by leases of a holder, and waiting for a moment or for others."""

    ready: int
    held: int
    waiting: int


def backlog(conn: psycopg.Connection[Any], holder: str, queue: str, topic: str | None = None) -> Backlog:
    """Count what is left; QueueNotFound if there is no such queue."""
    return Backlog(**run(conn, verbs.run_backlog(holder, queue, topic=topic)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The task of a drain; pickled into each of them. `holder` begins the name that its leases and results carry."""

    database: Database
    queue: str
    function: str | BatchFunction
    form: Form
    parallelism: int
    batch_size: int
    lease_for: timedelta | None
    topic: str | None
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
            # The driver appends DETAIL and CONTEXT, which may quote a body.
            raise PgQueueError(f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}") from None
        return counts + Counter(leased=counts.total())

    def _consume(self, part: int, counts: Counter[str]) -> None:
        batches = Batches(load_function(self.function) if isinstance(self.function, str) else self.function, self.form)
        attempt = _attempt()
        with self.database.connect(f"pgqueue drain {self.queue}"[:63]) as conn:
            leave_json(conn)

            def stop() -> bool:
                return batches.misuse is not None or self._is_stopped(conn)

            if self.max_messages is not None and attempt > 0:
                # How much of its share the first attempt took, only the archive knows: the next round asks it.
                self._await_twin(conn, part, stop)
            else:
                self._take(conn, part, self._consumer(part, attempt, batches), counts, stop)
        if batches.misuse is not None:
            raise InvalidArgument(batches.misuse)

    def _take(
        self,
        conn: psycopg.Connection[Any],
        part: int,
        consumer: Consumer,
        counts: Counter[str],
        stop: Callable[[], bool],
    ) -> None:
        wanted = self._wanted(part)
        while not stop():
            left = None if wanted is None else wanted - counts.total()
            counts.update(consumer.drain(conn, max_messages=left, stop=stop))
            if counts.total() == wanted or not self._has_twin(conn, part):
                break
            time.sleep(_LOOK_EVERY)

    def _await_twin(self, conn: psycopg.Connection[Any], part: int, stop: Callable[[], bool]) -> None:
        """Wait until another attempt holds nothing in two looks: between two batches it holds nothing in one."""
        alone = 0
        while not stop() and alone < 2:
            time.sleep(_LOOK_EVERY)
            alone = 0 if self._has_twin(conn, part) else alone + 1

    def _consumer(self, part: int, attempt: int, batches: Batches) -> Consumer:
        return Consumer(
            queue_name=self.queue,
            handle_batch=batches,
            batch_size=self.batch_size,
            lease_for=self.lease_for,
            handled_by=f"{self.holder}{part}.{attempt}:{process_name()}",
            topic=self.topic,
            give_up_after=self.give_up_after,
        )

    def _wanted(self, part: int) -> int | None:
        if self.max_messages is None:
            return None
        whole, rest = divmod(self.max_messages, self.parallelism)
        return whole + (part < rest)

    def _has_twin(self, conn: psycopg.Connection[Any], part: int) -> bool:
        """Say whether another attempt of this task still holds messages.

        Spark starts a second attempt of a slow task, and kills the slow one when either is done. Who has nothing to do
        therefore waits for the other: to end, or to lose its leases, and then there is something to do.
        """
        return backlog(conn, f"{self.holder}{part}.", self.queue, self.topic).held > 0

    def _is_stopped(self, conn: psycopg.Connection[Any]) -> bool:
        """Say whether the driver wants an end: then it holds an advisory lock under a key that was drawn for this."""
        row = conn.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", [self.stop_key]).fetchone()
        return row is not None and not row[0]


def _attempt() -> int:
    """Return which attempt of its task this is; the first one is 0, and there is one outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0
