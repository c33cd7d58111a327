"""What a consumer is told: the queue, the function for its messages, and their batches, leases and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.argument import LEASE_FOR, Rule, check, duration, error_rules, optional, whole
from airflow_provider_pgqueue.core.consumer.handler import Handle, HandleBatch
from airflow_provider_pgqueue.core.consumer.loop import Loop
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.outcome import ErrorRules

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
    an exception; if the handler returned, its message fails with TransactionLeftOpen, as if that had been raised. What
    a rollback cannot end, such as a stream, ends the connection and `drain`, with ConnectionFailed. Its transactions
    and statements should be shorter than the lease: a rollback undoes the renewals that came meanwhile, and a statement
    holds them up.

    Leases are renewed while the handler runs. `lease_for` and `handler_timeout` are by default those of the queue's
    policy.

    With a `handler_timeout` the handler runs in a thread of its own. If a call for one message takes longer, the lease
    is no longer renewed, and when it ends, the message is delivered again; after its last attempt it is archived as
    `lock_expired` at once. Python cannot end the call, so it continues in its thread, and what it returns is dropped;
    the consumer handles the other messages in a new thread. When calls hang on ten messages, `drain` gives the rest
    back and raises HandlerBroken.

    `drain` also raises HandlerBroken when the handler fails on `give_up_after` messages in a row; messages that failed
    before do not count. What failed has used an attempt, and the rest is given back without one. 0 or None never gives
    up.
    """

    queue_name: str
    handle: Handle | None = None
    handle_batch: HandleBatch | None = None
    batch_size: int = 100
    lease_for: Duration | None = None
    handler_timeout: Duration | None = None
    give_up_after: int | None = 100
    on_error: ErrorRules | None = None
    handled_by: str | None = None

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.handle_batch is None):
            raise InvalidArgument("give exactly one of handle and handle_batch")
        for name in ("handle", "handle_batch"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise InvalidArgument(f"{name} is of type {type(given).__name__}", "Give a function.")
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
