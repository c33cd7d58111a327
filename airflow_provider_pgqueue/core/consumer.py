"""The consumer loop: lease a batch, handle it, archive each message with its outcome, until the queue is empty."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core.argument import check, error_rules, optional
from airflow_provider_pgqueue.core.batch import Batch, BatchHandler, Handler
from airflow_provider_pgqueue.core.breaker import Breaker
from airflow_provider_pgqueue.core.caller import Caller
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.intake import Intake
from airflow_provider_pgqueue.core.lease import Lease, Renewal
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import ErrorRules
from airflow_provider_pgqueue.core.quantity import quantity

log = logging.getLogger(__name__)

_SAY_EVERY = 5.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Handles the messages of one queue, and archives each with its outcome.

    Give exactly one handler. `handle` gets one message and returns its outcome, or None for success. `handle_batch`
    gets all messages of a lease and returns outcomes by message id (those it leaves out succeeded), or one outcome per
    message in order, or None if all succeeded.

    A handler that raises RejectMessage rejects the message. After any other exception the message is delivered again,
    after `retry_delay(attempts)` or by default the back-off of the queue; after its last attempt it is archived as
    failed, with the traceback. `on_error` says otherwise for classes of exceptions and what inherits from them, the
    nearest first: `{ValidationError: Rejected, KeyError: Failed, HTTPError: Retry(timedelta(minutes=5))}`. An exception
    of `handle_batch` concerns the whole batch. An outcome that cannot be kept, such as an output of more than 64 kB,
    makes its own message failed and no other.

    What ends the process or the task while a handler runs, such as SystemExit, AirflowTaskTimeout or TaskDeferred,
    costs the message in hand an attempt, so that one that kills its consumer is not delivered for ever; the others go
    back without one. A rule of `on_error` may say otherwise: `{AirflowTaskTimeout: Retry(count_attempt=False)}`.
    KeyboardInterrupt costs no attempt.

    A handler that returns something else has a bug that no delivery cures: `drain` settles what was handled before,
    gives the rest back without counting an attempt, and raises InvalidOutcome.

    Leases are renewed while the handler runs. `lease_for` and `handler_timeout` are by default those of the queue's
    policy. With a `topic` pattern or `headers` only matching messages are leased; the others stay in the queue.

    With a `handler_timeout` a handler runs in a thread of its own. When it takes longer for a message, or on average
    longer for each message of its batch, the lease is no longer renewed: when it ends, the message is delivered again,
    or archived as `lock_expired` after its last attempt. Python cannot end the call, so it continues in its thread, and
    what it returns is dropped; the consumer handles the other messages in a new one. With ten calls hanging, `drain`
    gives the rest back and raises HandlerBroken.

    `drain` also raises HandlerBroken when the handler fails with one fingerprint on each of the first `give_up_after`
    messages, or on 95 % of the last 50 times as many. It gives back what it has not finished, without counting an
    attempt, as far as possible also what failed. 0 or None never gives up.
    """

    queue_name: str
    handle: Handler | None = None
    handle_batch: BatchHandler | None = None
    batch_size: int = 100
    lease_for: timedelta | None = None
    handler_timeout: timedelta | None = None
    give_up_after: int | None = 20
    retry_delay: Callable[[int], timedelta] | None = None
    on_error: ErrorRules | None = None
    handled_by: str | None = None
    topic: str | None = None
    headers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.handle_batch is None):
            raise InvalidArgument("give exactly one of handle and handle_batch")
        if self.handler_timeout is not None and self.handler_timeout <= timedelta(0):
            raise InvalidArgument(f"handler_timeout is {self.handler_timeout}. Give a duration above zero.")
        check({"on_error": self.on_error}, {"on_error": optional(error_rules)})
        self.breaker()

    def breaker(self) -> Breaker:
        """Return what stops a drain, or several that share it, when the handler is broken."""
        return Breaker(self.queue_name, self.give_up_after)

    def drain(
        self,
        conn: psycopg.Connection[Any],
        *,
        max_messages: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda counts: None,
        breaker: Breaker | None = None,
        on_lease: Callable[[Lease], None] = lambda lease: None,
        intake: Intake | None = None,
    ) -> Counter[str]:
        """Handle messages until the queue has none ready, `max_messages` were leased, or `stop` returns True.

        Returns how many messages ended as `success`, `rejected`, `failed`, `retried` (delivered again later),
        `released` (not started), `lost` (the lease ended first, and another consumer gets them) and `timed_out` (their
        handler exceeded its time). After `stop` the current message is finished and the rest of the batch released
        without counting an attempt.

        A crash loses nothing: messages that were handled but not yet archived, at most a batch, are delivered again.
        The call that archives a batch leases the next one, so at no time are more messages leased than `batch_size`.
        `on_batch` is called with the counts so far after each batch, `on_lease` with each lease, whose `give_back` and
        `give_up` free the messages beside a handler that does not return. `breaker` and `intake` are shared by drains
        that follow one another; by default each has its own.
        """
        counts: Counter[str] = Counter()
        intake = intake or self.intake(conn)
        breaker = breaker or self.breaker()
        leased, said = 0, time.monotonic()

        def wanted() -> int:
            if stop():
                return 0
            return self.batch_size if max_messages is None else min(self.batch_size, max_messages - leased)

        # One thread for the whole loop: quick batches would each start one for nothing.
        with Renewal() as renewal, Caller() as caller:
            messages: list[Message] | None = None
            while True:
                if messages is None:
                    messages = intake.lease(number) if (number := wanted()) > 0 else []
                if not messages:
                    break
                leased += len(messages)
                with _given_back_after_an_error(conn, messages):
                    # Not before there is a message: most looks of a worker find none.
                    policy = intake.policy
                    lease = Lease(
                        conn, messages, lease_for=policy.lease_for, handled_by=self.handled_by, renewal=renewal
                    )
                    on_lease(lease)
                batch = Batch(
                    lease,
                    caller=caller,
                    limit=policy.handler_timeout,
                    retry_delay=self.retry_delay,
                    on_error=self.on_error,
                    breaker=breaker,
                    counts=counts,
                )
                messages = batch.work(self.handle, self.handle_batch, stop=stop, intake=intake, wanted=wanted)
                with _given_back_after_an_error(conn, messages):
                    on_batch(counts)
                    if time.monotonic() - said >= _SAY_EVERY:
                        said = time.monotonic()
                        log.info("queue %s so far: %s", self.queue_name, dict(counts))
        return counts

    def intake(self, conn: psycopg.Connection[Any]) -> Intake:
        """Return where drains over this connection get their messages; sharing it saves a question each."""
        return Intake(
            conn,
            self.queue_name,
            lease_for=self.lease_for,
            handler_timeout=self.handler_timeout,
            handled_by=self.handled_by,
            topic=self.topic,
            headers=self.headers,
        )


@contextmanager
def _given_back_after_an_error(conn: psycopg.Connection[Any], messages: list[Message] | None) -> Iterator[None]:
    """Release messages that nobody began, without counting an attempt, if the block raises."""
    try:
        yield
    except BaseException:
        if messages:
            try:
                Lease(conn, messages).release(messages, count_attempt=False)
            except PgQueueError as failed:
                # The error of the block matters more.
                log.warning("could not release %s (%s)", quantity(len(messages)), type(failed).__name__)
        raise
