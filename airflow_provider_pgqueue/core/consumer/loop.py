"""The consumer loop: take a lease, have its messages handled, settle it, until the queue has none ready."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core.client import fetch, is_alone, require, run
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.handler import Handler
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.portion import Portion
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.consumer.rows import TOKEN, json_reader, message_query, messages_of
from airflow_provider_pgqueue.core.deadline import obeying
from airflow_provider_pgqueue.core.duration import as_timedelta
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidOutcome, PgQueueError, refused
from airflow_provider_pgqueue.core.message import LeasePolicy, Message
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Rejected, Success, is_plain, outcomes_as_json
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs.lease import release

if TYPE_CHECKING:
    from airflow_provider_pgqueue.core.consumer.consumer import Consumer

log = logging.getLogger(__name__)

NEEDED: Final = ("lease", "abandoned", "lease_policy", "extend", "archive", "archive_and_lease", "release")
"""The functions that a consumer calls."""
_POLICY_LASTS: Final = 10.0  # seconds until a changed policy of the queue is noticed


class Loop:
    """Takes leases of one consumer over one connection, one after another, in a `with` block.

    Its drains share what is costly to begin anew: the thread that renews leases, the thread of a handler that has a
    time limit, and the policy of the queue. `counts` has how messages ended in all of them, also after an error.

    It sends three statements again and again, with one cursor, and reads their rows by position: for ten messages a
    call of `run` takes longer in Python than in the server (docs/decisions/0015-leases-are-not-flushed.md).

    :param breaker: stops the loop when the handler is broken; by default one of its own.
    :param counts: how messages ended is added here.
    :param on_lease: called with each lease; its `give_back` frees the messages from another thread while a handler does
        not return.
    :param on_batch: called after each batch with the counts so far.
    """

    def __init__(
        self,
        consumer: Consumer,
        conn: psycopg.Connection[Any],
        *,
        breaker: Breaker | None = None,
        counts: Counter[str] | None = None,
        on_lease: Callable[[Lease], None] = lambda lease: None,
        on_batch: Callable[[Counter[str]], None] = lambda counts: None,
    ) -> None:
        self._consumer = consumer
        self._conn = conn
        self.counts = Counter[str]() if counts is None else counts
        self._on_lease = on_lease
        self._on_batch = on_batch
        self._handler = Handler(
            consumer.handle,
            consumer.handle_batch,
            breaker=breaker or Breaker(consumer.queue_name, consumer.give_up_after),
            on_error=consumer.on_error,
        )
        self._portion = Portion(consumer.batch_size)
        self._renewal = Renewal()
        self._logged_at = time.monotonic()
        self._lease_for = None if consumer.lease_for is None else as_timedelta(consumer.lease_for)
        self._policy: LeasePolicy | None = None
        self._policy_ends = 0.0
        self._read_json = json_reader(conn)
        self._cursor = psycopg.RawCursor(conn, row_factory=tuple_row)
        self._late: list[PGresult] = []
        # The token of the messages that are in a lease, which gives them back after an exception.
        self._in_lease: UUID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End its threads, after a renewal in progress; a call that hangs is not waited for."""
        self._handler.close()
        self._renewal.close()

    @property
    def limits_rate(self) -> bool:
        """Whether the queue had a rate when a message was last leased from it."""
        return self._policy is not None and self._policy.limits_rate

    def drain(self, *, max_messages: int | None = None, stop: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Do what `Consumer.drain` does, and return `counts`."""
        self._logged_at = time.monotonic()
        if self._policy is None:
            # Before anything is leased.
            require(self._conn, NEEDED, self._consumer.queue_name)
        try:
            with obeying(self._conn, stop):
                self._take_leases(inf if max_messages is None else max_messages, stop)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._renewal.rest()
        return self.counts

    def _take_leases(self, left: float, stop: Callable[[], bool]) -> None:
        """Take leases until no message is ready, `left` messages were leased, or `stop` returns True."""
        portion = self._portion
        messages: list[Message] | None = None
        while True:
            if messages is None and left > 0 and not stop():
                messages = self.lease(int(min(portion.size, left)))
            if not messages:
                return
            attempts = {message.id: message.attempts for message in messages}
            del messages[portion.fit(self._conn, messages[0].lock_token, attempts, messages[0].max_attempts) :]
            left -= len(messages)
            lease = self._hold(messages)
            messages = self._handle(lease, room=int(min(portion.size, left)), stop=stop)
            self._on_batch(self.counts)
            self._log_progress()

    def _hold(self, messages: list[Message]) -> Lease:
        """Return a lease of messages, which is renewed from now on."""
        lease_for = self.policy.lease_for
        lease = Lease(
            self._conn, messages, lease_for=lease_for, handled_by=self._consumer.handled_by, counts=self.counts
        )
        self._on_lease(lease)
        if self._conn.autocommit:  # as in Lease.__enter__
            self._renewal.hold(lease, lease_for)
        self._in_lease = messages[0].lock_token
        return lease

    def _handle(self, lease: Lease, *, room: int, stop: Callable[[], bool]) -> list[Message] | None:
        """Have a lease handled until `stop` returns True, settle it, and give back what was not begun.

        Returns the next messages, up to `room`, if they could be leased in the same call, else None.
        """
        try:
            all_begun = self._handler.handle(lease, limit=self.policy.handler_timeout, stop=stop)
            following = None if room <= 0 or stop() else lease.exchange(partial(self._archive_and_lease, room))
            self._handler.settle(lease)
            if following is None:
                lease.release_rest(begun=all_begun)
        except BaseException as error:
            # Messages that were not begun must lose no attempt, nor any message if the reason is not in these messages.
            blameless = isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception)
            lease.wind_up(error, begun=() if blameless else lease.in_hand)
            raise
        return following

    def _log_progress(self) -> None:
        """Log the counts if they were last logged long ago."""
        now = time.monotonic()
        if now - self._logged_at >= TUNING.log_every:
            log.info("queue %s so far: %s", self._consumer.queue_name, dict(self.counts))
            self._logged_at = now

    def lease(self, max_messages: int) -> list[Message]:
        """Lease up to so many messages, as `verbs.lease` does."""
        rows = self._fetch("lease_batch", [*self._wanted(max_messages), is_alone(self._conn)])
        return messages_of(rows, self._read_json)

    @property
    def can_exchange(self) -> bool:
        """Whether one call can archive messages and lease others, and hinders no other consumer.

        In a transaction of the caller, an error would undo more than the call. With a max_leased no other consumer
        can lease until the commit, and this commit waits for the disk.
        """
        return is_alone(self._conn) and not self.policy.counts_leases

    def _archive_and_lease(
        self, max_messages: int, lock_token: UUID, outcomes: Mapping[int, Success | Rejected | Failed]
    ) -> tuple[set[int], list[Message]] | None:
        """Archive messages and lease others; return which of the ids were lost, and the messages.

        Both take effect, or after an error neither does; None if it is not possible now.
        """
        if not self.can_exchange:
            return None
        # Compared by identity first, because most outcomes are plain and a call for each message takes longer.
        special = {id_: outcome for id_, outcome in outcomes.items() if outcome is not PLAIN and not is_plain(outcome)}
        said = outcomes_as_json(special) if special else None
        # Ten times as fast as the driver, which checks each number for the smallest type that holds all of them.
        ids = "{" + ",".join(map(str, outcomes)) + "}"
        rows = self._fetch("archive_and_lease_batch", [*self._wanted(max_messages), lock_token, ids, said])
        archived = rows[0][-1]
        lost = set[int]() if archived is None else outcomes.keys() - archived
        found = [row[:-1] for row in rows if row[0] is not None]
        return lost, messages_of(found, self._read_json)

    def _give_back(self) -> None:
        """After an exception, release leased messages that are in no lease yet, without an attempt.

        The exception may have come from a signal at any time, such as while the rows were read.
        """
        late, self._late = self._late, []
        for result in (*late, self._cursor.pgresult):
            if result is None or not result.ntuples or (token := result.get_value(0, TOKEN)) is None:
                continue
            if (lock_token := UUID(bytes=token)) == self._in_lease:
                continue
            self._in_lease = lock_token
            ids = [int.from_bytes(result.get_value(row, 0) or b"") for row in range(result.ntuples)]
            try:
                run(self._conn, release(lock_token, ids, count_attempt=False))
            except (PgQueueError, psycopg.Error) as failed:
                # The earlier error matters more.
                log.warning("could not release %s (%s)", quantity(len(ids)), type(failed).__name__)

    @property
    def policy(self) -> LeasePolicy:
        """The policy of the queue, at most ten seconds old, with what the consumer says otherwise."""
        now = time.monotonic()
        if self._policy is None or now >= self._policy_ends:
            # Another cursor, because the usual one has the rows that were leased last.
            cursor = psycopg.RawCursor(self._conn, row_factory=tuple_row)
            ((lease_for, handler_timeout, counts_leases, limits_rate),) = self._fetch(
                "lease_policy", [self._consumer.queue_name], cursor
            )
            given = self._consumer.handler_timeout
            self._policy, self._policy_ends = (
                LeasePolicy(
                    lease_for=self._lease_for or lease_for,
                    handler_timeout=handler_timeout if given is None else as_timedelta(given),
                    counts_leases=counts_leases,
                    limits_rate=limits_rate,
                ),
                now + _POLICY_LASTS,
            )
        return self._policy

    def _wanted(self, max_messages: int) -> list[Any]:
        return [self._consumer.queue_name, max_messages, self._lease_for, self._consumer.handled_by]

    def _fetch(
        self, name: str, arguments: list[Any], cursor: psycopg.RawCursor[tuple[Any, ...]] | None = None
    ) -> list[tuple[Any, ...]]:
        # With its own cursor, whose last rows `_give_back` may need.
        late, cursor = (self._late, self._cursor) if cursor is None else (None, cursor)
        fix = partial(refused, verb="lease", queue_name=self._consumer.queue_name)
        return fetch(self._conn, tuple_row, message_query(name), arguments, cursor=cursor, fix=fix, late=late)
