"""The consumer loop: lease a batch, handle it, archive each message with its outcome, until the queue is empty."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import Any

import psycopg

from airflow_provider_pgqueue.core.argument import check, error_rules
from airflow_provider_pgqueue.core.breaker import Breaker, failure_of
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidArgument, InvalidOutcome, LeaseLost, PgQueueError
from airflow_provider_pgqueue.core.intake import Intake
from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import Message, Unreadable
from airflow_provider_pgqueue.core.outcome import (
    PLAIN,
    ErrorRules,
    Outcome,
    Rejected,
    Retry,
    checked,
    describe,
    end_of,
    outcome_of,
    outcomes_by_id,
    storable,
)
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.renewal import Renewal

log = logging.getLogger(__name__)

_SAY_EVERY = 5.0  # seconds
# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all. Seconds.
_SETTLE_EVERY = 1.0
_MOST_HANGING = 10  # calls that may hang in this process before it stops

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Handles the messages of one queue, and archives each with its outcome.

    Give exactly one handler. `handle` gets one message and returns its outcome, or None for success. `handle_batch`
    gets all messages of a lease and returns outcomes by message id (those it leaves out succeeded), or one outcome per
    message in order, or None if all succeeded.

    A handler that raises RejectMessage rejects the message. After any other exception the message is delivered again,
    after `retry_delay(attempts)` or by default the back-off of the queue; after its last attempt it is archived as
    failed, with the traceback. `on_error` gives other outcomes to classes of exceptions and their subclasses; the most
    specific class counts: `{ValidationError: Rejected, KeyError: Failed, HTTPError: Retry(timedelta(minutes=5))}`. An
    exception of `handle_batch` concerns the whole batch. If an outcome cannot be kept, for example because its output
    has more than 64 kB, that message alone is archived as failed.

    If something ends the process or the task while a handler runs, such as SystemExit, AirflowTaskTimeout or
    TaskDeferred, the attempt of the current message counts, so that a message that kills its consumer is not delivered
    for ever; the others go back without an attempt. `on_error` may say otherwise:
    `{AirflowTaskTimeout: Retry(count_attempt=False)}`. After KeyboardInterrupt no attempt counts.

    A handler that returns anything else has a bug that no other delivery cures: `drain` settles the messages handled
    before, gives the rest back, and raises InvalidOutcome. No attempt counts; the message itself is delivered again
    only after the back-off, behind the others.

    Leases are renewed while the handler runs. `lease_for` and `handler_timeout` are by default those of the queue's
    policy. With a `topic` pattern or `headers` only matching messages are leased; the others stay in the queue.

    With a `handler_timeout` the handler runs in a thread of its own. If it takes longer for a message, or on average
    longer for each message of its batch, the lease is no longer renewed: when it ends, the message is delivered again,
    or archived as `lock_expired` after its last attempt. Python cannot end the call, so it continues in its thread, and
    what it returns is dropped; the consumer handles the other messages in a new thread. When ten calls hang, `drain`
    gives the rest back and raises HandlerBroken.

    `drain` also raises HandlerBroken when the handler fails with the same fingerprint on each of the first
    `give_up_after` messages, or on 95 % of the last 50 times as many. It gives unfinished messages back without
    counting an attempt, including failed ones that it has not settled yet. 0 or None never gives up.
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
        if self.give_up_after is not None and self.give_up_after < 0:
            raise InvalidArgument(f"give_up_after is {self.give_up_after}. Give a number of messages, or 0 for never.")
        if self.on_error is not None:
            check({"on_error": self.on_error}, {"on_error": error_rules})

    def breaker(self) -> Breaker:
        """Return the breaker that stops a drain, or several that share it, when the handler is broken."""
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
        renewal: Renewal | None = None,
    ) -> Counter[str]:
        """Handle messages until the queue has none ready, `max_messages` were leased, or `stop` returns True.

        Returns how many messages ended as `success`, `rejected`, `failed`, `retried` (delivered again later),
        `released` (not started), `lost` (the lease ended first, and another consumer gets them) and `timed_out` (their
        handler exceeded its time). After `stop` the current message is finished and the rest of the batch released
        without counting an attempt.

        A crash loses nothing: messages that were handled but not yet archived, at most a batch, are delivered again.
        The call that archives a batch leases the next one, so at no time are more messages leased than `batch_size`.
        `on_batch` is called after each batch with the counts so far. `on_lease` is called with each lease; its
        `give_back` and `give_up` free the messages from another thread while a handler does not return. Drains that
        follow one another may share a `breaker`, an `intake` and a `renewal`; by default each has its own.
        """
        counts: Counter[str] = Counter()
        intake = intake or self.intake(conn)
        breaker = breaker or self.breaker()
        left = inf if max_messages is None else max_messages
        said = time.monotonic()
        # One thread for the whole loop: quick batches would each start one for nothing.
        own = closing(Renewal()) if renewal is None else renewal.borrowed()
        with own as renewal, ExitStack() as stack:
            messages: list[Message] | None = None
            caller: Caller | None = None
            while True:
                if messages is None and left > 0 and not stop():
                    messages = intake.lease(int(min(self.batch_size, left)))
                if not messages:
                    break
                left -= len(messages)
                with _given_back_after_an_error(conn, messages):
                    # Not before there is a message: most looks of a worker find none.
                    policy = intake.policy
                    lease = Lease(
                        conn, messages, lease_for=policy.lease_for, handled_by=self.handled_by, renewal=renewal
                    )
                    on_lease(lease)
                if (limit := policy.handler_timeout) is not None:
                    caller = caller or stack.enter_context(Caller(limit))
                    caller.limit = limit
                batch = _Batch(self, lease, None if limit is None else caller, breaker, counts)
                messages = batch.work(intake, room=int(min(self.batch_size, left)), stop=stop)
                with _given_back_after_an_error(conn, messages):
                    on_batch(counts)
                    if time.monotonic() - said >= _SAY_EVERY:
                        said = time.monotonic()
                        log.info("queue %s so far: %s", self.queue_name, dict(counts))
        return counts

    def intake(self, conn: psycopg.Connection[Any]) -> Intake:
        """Return where drains over this connection get their messages; sharing it saves each drain a query."""
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
    """If the block raises, release the messages, none of which was begun, without counting an attempt."""
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


class _Batch:
    """Handles the messages of a lease and settles them: those of each second together, and the rest at the end.

    :param caller: calls the handler if it has a time limit, and stops waiting for it at the limit.
    :param counts: how messages ended is added here.
    """

    def __init__(
        self, consumer: Consumer, lease: Lease, caller: Caller | None, breaker: Breaker, counts: Counter[str]
    ) -> None:
        self._consumer = consumer
        self._lease = lease
        self._caller = caller
        self._breaker = breaker
        self._counts = counts
        self._gathered: dict[Message, Outcome] = {}
        self._due = time.monotonic() + _SETTLE_EVERY

    def work(self, intake: Intake, *, room: int, stop: Callable[[], bool]) -> list[Message] | None:
        """Handle all messages until `stop` returns True, settle them, and give back what nobody began.

        Returns the next messages, up to `room`, if they could be leased in the same call, else None. When the handler
        is broken, failures that are not settled yet become retries that do not count as attempts.
        """
        lease, following = self._lease, None
        with lease:
            try:
                self._handle_all(stop)
                following = None if room <= 0 or stop() else self._exchange(intake, room)
                self._settle()
            except BaseException as error:
                if isinstance(error, HandlerBroken):
                    self._gathered = {message: _uncounted(outcome) for message, outcome in self._gathered.items()}
                # What was handled has had its effect: it must not be delivered again because of what came after it.
                self._settle()
                if isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception):
                    # The loop ends for a reason that is not in these messages.
                    lease.release(lease.held, count_attempt=False)
                raise
            if following is None and (unstarted := lease.held):
                # Nobody began them, so it was no attempt.
                self._counts["released"] += len(unstarted)
                lease.release(unstarted, count_attempt=False)
        return following

    def _handle_all(self, stop: Callable[[], bool]) -> None:
        messages, consumer = self._without_unreadable(), self._consumer
        if consumer.handle:
            self._each(consumer.handle, messages, stop)
        elif consumer.handle_batch and messages:
            self._all_at_once(consumer.handle_batch, messages)

    def _without_unreadable(self) -> list[Message]:
        readable = []
        for message in self._lease.messages:
            if isinstance(message.body, Unreadable) or isinstance(message.headers, Unreadable):
                # Not the breaker's: no handler saw it.
                self._gather(message, Rejected(f"Python cannot read its JSON: {message.unreadable}"))
            else:
                readable.append(message)
        return readable

    def _each(self, handle: Handler, messages: list[Message], stop: Callable[[], bool]) -> None:
        lease, caller = self._lease, self._caller
        for message in messages:
            # Before the question: whoever stops the loop in between must not take it for a message that nobody began.
            lease.in_hand = {message.id}
            if stop():
                return
            if message.id in lease.lost:
                continue
            try:
                returned = handle(message) if caller is None else caller.call(handle, message)
            except TimeIsUp as error:
                self._leave([message], error)
                continue
            except Exception as error:
                # Whatever the handler raises concerns this message alone.
                self._note(message, self._outcome(message, error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # The handler ends the process, or ran out of its time: an attempt of this message, or the next process
                # would end on it too.
                self._note(message, self._outcome(message, error))
                raise
            else:
                self._note(message, PLAIN if returned is None else self._checked(message, returned))

    def _all_at_once(self, handle_batch: BatchHandler, messages: list[Message]) -> None:
        self._lease.in_hand = {message.id for message in messages}
        try:
            caller = self._caller
            returned = caller.call(handle_batch, messages, len(messages)) if caller else handle_batch(messages)
        except TimeIsUp as error:
            self._leave(messages, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = describe(error)
            for message in messages:
                self._note(message, self._outcome(message, error, failure))
            if not isinstance(error, Exception):
                raise
        else:
            try:
                outcomes = outcomes_by_id(messages, returned)
            except InvalidOutcome as error:
                # Nobody knows which message it is: no attempt of any, but those behind them come first next time.
                for message in messages:
                    self._gather(message, Retry(details=str(error), count_attempt=False))
                raise
            for message in messages:
                outcome = outcomes.get(message.id)
                self._note(message, PLAIN if outcome is None else self._checked(message, outcome))

    def _checked(self, message: Message, returned: Any) -> Outcome:
        """Return the outcome. If it is none, let its message come later, which would stay the first otherwise."""
        try:
            return checked(message, returned)
        except InvalidOutcome as error:
            self._gather(message, Retry(details=storable(str(error)), failure=describe(error), count_attempt=False))
            raise

    def _leave(self, messages: list[Message], why: TimeIsUp) -> None:
        """Stop renewing the messages of a call that hangs; HandlerBroken if too many calls hang."""
        self._lease.let_expire(messages)
        self._counts["timed_out"] += len(messages)
        self._breaker.handled += len(messages)
        self._breaker.failed += len(messages)
        queue_name = messages[0].queue_name
        log.warning(
            "the handler of queue %s exceeded its time of %s on %s: the lease is no longer renewed, and the call "
            "continues in a thread that nobody waits for",
            queue_name,
            why.limit,
            f"message {messages[0].id}" if len(messages) == 1 else quantity(len(messages)),
        )
        if why.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"{why.hanging} calls of the handler of queue {queue_name!r} hang",
                "Start the process again, which ends them, and give what the handler waits for a time-out.",
            )

    def _outcome(self, message: Message, error: BaseException, failure: dict[str, str] | None = None) -> Outcome:
        consumer = self._consumer
        delay = consumer.retry_delay(message.attempts) if consumer.retry_delay else None
        return outcome_of(error, rules=consumer.on_error, delay=delay, failure=failure)

    def _note(self, message: Message, outcome: Outcome) -> None:
        self._gather(message, outcome)
        self._breaker.note(message, outcome)
        # What may be taken back soon is not settled yet.
        if time.monotonic() >= self._due and not self._breaker.suspects:
            self._settle()
            self._due = time.monotonic() + _SETTLE_EVERY

    def _gather(self, message: Message, outcome: Outcome) -> None:
        self._gathered[message] = outcome
        # For whoever settles it beside a handler that hangs.
        self._lease.handled[message.id] = outcome

    def _exchange(self, intake: Intake, room: int) -> list[Message] | None:
        """Settle all that is left and lease the next messages in one call; None if that cannot be done in one."""
        outcomes = {message.id: outcome for message, outcome in self._gathered.items()}
        settled = self._take()
        following = self._lease.exchange(outcomes, intake, room)
        if following is None:
            self._gathered = settled
        else:
            self._count(settled)
            if lost := self._lease.lost & outcomes.keys():
                _warn_of_lost(LeaseLost(lost))
        return following

    def _settle(self) -> None:
        settled, lease = self._take(), self._lease
        if not settled:
            return
        try:
            lease.settle({message: outcome for message, outcome in settled.items() if lease.holds(message)})
        except LeaseLost as error:
            # Another consumer has those messages now, and the others are settled: nothing that should end the loop.
            _warn_of_lost(error)
        self._count(settled)
        for message in settled if lease.unkept else ():
            if message.id in lease.unkept:
                self._breaker.note_unkept(message)

    def _take(self) -> dict[Message, Outcome]:
        taken, self._gathered = self._gathered, {}
        return taken

    def _count(self, settled: Mapping[Message, Outcome]) -> None:
        lease = self._lease
        self._counts.update(
            "success"
            if outcome is PLAIN and not lease.lost
            else "lost"
            if message.id in lease.lost
            else "failed"
            if message.id in lease.unkept
            else end_of(message, outcome)
            for message, outcome in settled.items()
        )


def _warn_of_lost(error: LeaseLost) -> None:
    log.warning("%s; they are delivered again", error.problem)


def _uncounted(outcome: Outcome) -> Outcome:
    """Return a failure as a retry that does not count, after a delay, so that the messages behind it come first."""
    if not isinstance(outcome, Retry) or failure_of(outcome) is None:
        return outcome
    return replace(outcome, count_attempt=False)
