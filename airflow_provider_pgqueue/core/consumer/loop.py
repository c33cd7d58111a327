"""The consumer loop: lease a batch, handle it, archive each message with its outcome, until the queue is empty."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, Final, Self

import psycopg

from airflow_provider_pgqueue.core.argument import LEASE_FOR, Rule, check, duration, error_rules, optional, whole
from airflow_provider_pgqueue.core.consumer.batch import Batch, BatchHandler, Handler
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.calls import Caller
from airflow_provider_pgqueue.core.consumer.intake import Intake
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.portion import Portion
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.deadline import obeying
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import ErrorRules
from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)

RULES: Final[Mapping[str, Rule]] = {
    "batch_size": whole(1, 10_000),
    "lease_for": optional(LEASE_FOR),
    "handler_timeout": optional(duration(timedelta(milliseconds=1), timedelta(days=30))),
    "give_up_after": optional(whole(0, 10**6)),
    "on_error": optional(error_rules),
}
"""The rules for the arguments that everything has that consumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Handles the messages of one queue, and archives each with its outcome.

    Give exactly one handler. `handle` gets one message and returns its outcome, or None for success. `handle_batch`
    gets all messages of a lease and returns outcomes by message id (those it leaves out succeeded), or one outcome per
    message in order, or None if all succeeded.

    A handler that raises RejectMessage rejects the message. After any other exception the message is delivered again,
    after the back-off of the queue; after its last attempt it is archived as failed, with the traceback. `on_error`
    gives other outcomes to classes of exceptions and their subclasses; the most specific class counts:
    `{ValidationError: Rejected, KeyError: Failed, HTTPError: Retry(timedelta(minutes=5))}`. If an outcome cannot be
    kept, for example because its output has more than 64 kB, that message alone is archived as failed.

    One message takes no other along. If `handle_batch` raises, or exceeds its time, it is called again with each tenth
    of the batch, and then with each message alone. What comes again after a lease that ended without a result, for
    example because a message killed the process, is handled with at most a tenth of a batch, then a hundredth, and
    alone at its last attempt.

    If something ends the process or the task while a handler runs, such as SystemExit, AirflowTaskTimeout or
    TaskDeferred, the attempt of the current messages counts, so that a message that kills its consumer is not delivered
    forever; the others go back without an attempt. `on_error` may say otherwise:
    `{AirflowTaskTimeout: Retry(count_attempt=False)}`. After KeyboardInterrupt no attempt counts.

    A handler that returns anything else has a bug that no other delivery fixes: `drain` settles the messages handled
    before, gives the rest back, and raises InvalidOutcome. No attempt counts; the message itself is delivered again
    only after the back-off, behind the others.

    A handler may use the connection of the consumer. A transaction that it leaves open there is rolled back, also after
    an exception; if the handler returned, its message fails with TransactionLeftOpen, as if that had been raised. Its
    transactions should be shorter than the lease: a rollback undoes the renewals that came meanwhile.

    Leases are renewed while the handler runs. `lease_for` and `handler_timeout` are by default those of the queue's
    policy.

    With a `handler_timeout` the handler runs in a thread of its own. If a call for one message takes longer, the lease
    is no longer renewed, and when it ends, the message is delivered again; after its last attempt it is archived as
    `lock_expired` at once. Python cannot end the call, so it continues in its thread, and what it returns is dropped;
    the consumer handles the other messages in a new thread. When calls hang on ten messages, `drain` gives the rest
    back and raises HandlerBroken.

    `drain` also raises HandlerBroken when the handler fails with the same fingerprint on each of the first
    `give_up_after` messages, or on 95 % of the last 10 times as many; messages that failed before do not count. What
    failed has used an attempt, and the rest is given back without one. 0 or None never gives up.
    """

    queue_name: str
    handle: Handler | None = None
    handle_batch: BatchHandler | None = None
    batch_size: int = 100
    lease_for: Duration | None = None
    handler_timeout: Duration | None = None
    give_up_after: int | None = 100
    on_error: ErrorRules | None = None
    handled_by: str | None = None

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.handle_batch is None):
            raise InvalidArgument("give exactly one of handle and handle_batch")
        check({name: getattr(self, name) for name in RULES}, RULES)

    def drain(
        self,
        conn: psycopg.Connection[Any],
        *,
        max_messages: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda counts: None,
    ) -> Counter[str]:
        """Handle messages until the queue has none ready, `max_messages` were leased, or `stop` returns True.

        Returns how many messages ended as `success`, `rejected`, `failed`, `retried` (delivered again later),
        `released` (not started), `lost` (the lease ended first, and another consumer gets them), `timed_out` (their
        handler exceeded its time) and `lock_expired` (it did so at their last attempt). After `stop` the current
        message is finished and the rest of the batch released without counting an attempt.

        A crash loses nothing: messages that were handled but not yet archived, at most a batch, are delivered again.
        The call that archives a batch leases the next one, so at no time are more messages leased than `batch_size`.
        `on_batch` is called after each batch with the counts so far.
        """
        with Loop(self, conn, on_batch=on_batch) as loop:
            return loop.drain(max_messages=max_messages, stop=stop)


class Loop:
    """The drains of one consumer over one connection, one after another, in a `with` block.

    They share what is costly to begin anew: the thread that renews leases, the thread of a handler that has a time
    limit, and the policy of the queue. `counts` has how messages ended in all of them, also after an error.

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
        self._breaker = breaker or Breaker(consumer.queue_name, consumer.give_up_after)
        self.counts = Counter[str]() if counts is None else counts
        self._on_lease = on_lease
        self._on_batch = on_batch
        self._intake = Intake(
            conn,
            consumer.queue_name,
            lease_for=consumer.lease_for,
            handler_timeout=consumer.handler_timeout,
            handled_by=consumer.handled_by,
        )
        self._portion = Portion(consumer.batch_size)
        self._stack = ExitStack()
        self._renewal = self._stack.enter_context(closing(Renewal()))
        self._caller: Caller | None = None
        self._logged_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End its threads, after a renewal in progress; a call that hangs is not waited for."""
        self._stack.close()

    @property
    def limits_rate(self) -> bool:
        """Whether the queue had a rate when a message was last leased from it."""
        return self._intake.limits_rate

    def drain(self, *, max_messages: int | None = None, stop: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Do what `Consumer.drain` does, and return `counts`."""
        self._logged_at = time.monotonic()
        self._intake.prepare()
        try:
            with obeying(self._intake.conn, stop):
                self._handle_batches(inf if max_messages is None else max_messages, stop)
        except BaseException:
            # Leased messages that were not handed out yet go back without an attempt.
            self._intake.give_back()
            raise
        finally:
            self._renewal.rest()
        return self.counts

    def _handle_batches(self, left: float, stop: Callable[[], bool]) -> None:
        """Lease and handle batches until none is ready, `left` messages were leased, or `stop` returns True."""
        intake, portion = self._intake, self._portion
        messages: list[Message] | None = None
        while True:
            if messages is None and left > 0 and not stop():
                messages = intake.lease(int(min(portion.size, left)))
            if not messages:
                return
            attempts = {message.id: message.attempts for message in messages}
            del messages[portion.fit(intake.conn, messages[0].lock_token, attempts, messages[0].max_attempts) :]
            left -= len(messages)
            batch = self._batch(messages)
            intake.held = messages[0].lock_token
            messages = batch.work(intake, room=int(min(portion.size, left)), stop=stop)
            self._on_batch(self.counts)
            self._log_progress()

    def _batch(self, messages: list[Message]) -> Batch:
        """Return a batch of messages under a lease that is renewed from now on."""
        # Started only when there is a message, because most polls of a worker find none.
        policy = self._intake.policy
        consumer, conn, limit = self._consumer, self._intake.conn, policy.handler_timeout
        lease = Lease(conn, messages, lease_for=policy.lease_for, handled_by=consumer.handled_by)
        self._on_lease(lease)
        if conn.autocommit:  # as in Lease.__enter__
            self._renewal.hold(lease, policy.lease_for)
        return Batch(
            handle=consumer.handle,
            handle_batch=consumer.handle_batch,
            on_error=consumer.on_error,
            lease=lease,
            caller=None if limit is None else self._caller_within(limit),
            breaker=self._breaker,
            counts=self.counts,
        )

    def _caller_within(self, limit: timedelta) -> Caller:
        """Return the one caller of the loop, with the limit of now."""
        if self._caller is None:
            self._caller = self._stack.enter_context(Caller(limit))
        self._caller.limit = limit
        return self._caller

    def _log_progress(self) -> None:
        """Log the counts if they were last logged long ago."""
        now = time.monotonic()
        if now - self._logged_at >= TUNING.log_every:
            log.info("queue %s so far: %s", self._consumer.queue_name, dict(self.counts))
            self._logged_at = now
