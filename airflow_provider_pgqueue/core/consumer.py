"""The consumer loop: lease a batch, handle it, archive each message with its outcome, until the queue is empty."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.breaker import Breaker, failure_of
from airflow_provider_pgqueue.core.caller import Caller, TimeIsUp
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import read_any_json
from airflow_provider_pgqueue.core.errors import HandlerBroken, InvalidArgument, InvalidOutcome, LeaseLost
from airflow_provider_pgqueue.core.lease import Lease, Renewal
from airflow_provider_pgqueue.core.message import LeasePolicy, Message, Unreadable
from airflow_provider_pgqueue.core.outcome import (
    Failed,
    Outcome,
    Rejected,
    RejectMessage,
    Retry,
    Success,
    describe,
    storable,
    text_of,
)
from airflow_provider_pgqueue.core.quantity import quantity

log = logging.getLogger(__name__)

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]
# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all. Seconds.
_SETTLE_EVERY = 1.0
_SAY_EVERY = 5.0  # seconds
_MOST_HANGING = 10  # calls that may hang in this process before it stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Handles the messages of one queue, and archives each with its outcome.

    Give exactly one handler. `handle` gets one message and returns its outcome, or None for success. `handle_batch`
    gets all messages of a lease and returns outcomes by message id (those it leaves out succeeded), or one outcome per
    message in order, or None if all succeeded.

    A handler that raises RejectMessage rejects the message. After any other exception the message is delivered again,
    after `retry_delay(attempts)` or by default the back-off of the queue; after its last attempt it is archived as
    failed, with the traceback. An exception of `handle_batch` concerns the whole batch. An outcome that cannot be kept,
    such as an output of more than 64 kB, makes its own message failed and no other.

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
    handled_by: str | None = None
    topic: str | None = None
    headers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.handle_batch is None):
            raise InvalidArgument("give exactly one of handle and handle_batch")
        if self.handler_timeout is not None and self.handler_timeout <= timedelta(0):
            raise InvalidArgument(f"handler_timeout is {self.handler_timeout}. Give a duration above zero.")
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
    ) -> Counter[str]:
        """Handle messages until the queue has none ready, `max_messages` were leased, or `stop` returns True.

        Returns how many messages ended as `success`, `rejected`, `failed`, `retried` (delivered again later),
        `released` (not started), `lost` (the lease ended first, and another consumer gets them) and `timed_out` (their
        handler exceeded its time). After `stop` the current message is finished and the rest of the batch released
        without counting an attempt.

        A crash loses nothing: messages that were handled but not yet archived, at most a batch, are delivered again.
        `on_batch` is called with the counts so far after each batch, `on_lease` with each lease, whose `give_back` and
        `give_up` free the messages beside a handler that does not return. `breaker` is shared by drains that follow one
        another; by default each has its own.
        """
        read_any_json(conn)
        counts: Counter[str] = Counter()
        leased, said, policy = 0, time.monotonic(), None
        breaker = breaker or self.breaker()
        # One thread for the whole loop: quick batches would each start one for nothing.
        with Renewal() as renewal, Caller() as caller:
            while not stop() and (max_messages is None or leased < max_messages):
                wanted = self.batch_size if max_messages is None else min(self.batch_size, max_messages - leased)
                messages = self._lease(conn, wanted)
                if not messages:
                    break
                leased += len(messages)
                # Not before there is a message: most looks of a worker find none.
                policy = policy or self._policy(conn)
                lease = Lease(conn, messages, lease_for=policy.lease_for, handled_by=self.handled_by, renewal=renewal)
                on_lease(lease)
                calls = _Calls(lease, caller, policy.handler_timeout, counts)
                self._work(calls, messages, stop, breaker)
                on_batch(counts)
                if time.monotonic() - said >= _SAY_EVERY:
                    said = time.monotonic()
                    log.info("queue %s so far: %s", self.queue_name, dict(counts))
        return counts

    def _lease(self, conn: psycopg.Connection[Any], wanted: int) -> list[Message]:
        statement = verbs.lease(
            self.queue_name,
            max_messages=wanted,
            lease_for=self.lease_for,
            locked_by=self.handled_by,
            topic=self.topic,
            headers=self.headers,
        )
        return run(conn, statement)

    def _policy(self, conn: psycopg.Connection[Any]) -> LeasePolicy:
        if self.lease_for is not None and self.handler_timeout is not None:
            return LeasePolicy(lease_for=self.lease_for, handler_timeout=self.handler_timeout)
        policy = run(conn, verbs.lease_policy(self.queue_name))
        return LeasePolicy(
            lease_for=self.lease_for or policy.lease_for,
            handler_timeout=self.handler_timeout or policy.handler_timeout,
        )

    def _work(self, calls: _Calls, messages: list[Message], stop: Callable[[], bool], breaker: Breaker) -> None:
        outcomes = chain(_rejected(messages), self._outcomes(calls, [m for m in messages if not _unreadable(m)], stop))
        lease, counts = calls.lease, calls.counts
        with lease:
            try:
                for settled in _now_and_then(_noted(lease, outcomes), breaker):
                    _settle(lease, settled, counts)
                    for message in settled if lease.unkept else ():
                        if message.id in lease.unkept:
                            breaker.note_unkept(message)
            except BaseException as error:
                if isinstance(error, InvalidOutcome | HandlerBroken) or not isinstance(error, Exception):
                    # The loop ends for a reason that is not in these messages.
                    lease.release(lease.held, count_attempt=False)
                raise
            if unstarted := lease.held:
                # Nobody began them, so it was no attempt.
                counts["released"] += len(unstarted)
                lease.release(unstarted, count_attempt=False)

    def _outcomes(
        self, calls: _Calls, messages: list[Message], stop: Callable[[], bool]
    ) -> Iterator[tuple[Message, Outcome]]:
        if self.handle:
            yield from self._each(self.handle, calls, messages, stop)
        elif messages:
            yield from self._all_at_once(calls, messages)

    def _each(
        self, handle: Handler, calls: _Calls, messages: list[Message], stop: Callable[[], bool]
    ) -> Iterator[tuple[Message, Outcome]]:
        for message in messages:
            # Before the question: whoever stops the loop in between must not take it for a message that nobody began.
            calls.lease.in_hand = {message.id}
            if stop():
                return
            if message.id in calls.lease.lost:
                continue
            try:
                returned = calls.call(handle, message, [message])
            except TimeIsUp:
                calls.leave([message])
                continue
            except Exception as error:
                # Whatever the handler raises concerns this message alone.
                yield message, self._outcome(message, error)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # The handler ends the process, or ran out of its time: an attempt of this message, or the next process
                # would end on it too.
                yield message, self._outcome(message, error)
                raise
            else:
                yield message, _checked(message, returned)

    def _all_at_once(self, calls: _Calls, messages: list[Message]) -> Iterator[tuple[Message, Outcome]]:
        calls.lease.in_hand = {message.id for message in messages}
        try:
            returned = calls.call(self.handle_batch, messages, messages) if self.handle_batch else None
        except TimeIsUp:
            calls.leave(messages)
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = describe(error)
            for message in messages:
                yield message, self._outcome(message, error, failure)
            if not isinstance(error, Exception):
                raise
            return
        outcomes = _by_id(messages, returned)
        for message in messages:
            yield message, _checked(message, outcomes.get(message.id))

    def _outcome(self, message: Message, error: BaseException, failure: dict[str, str] | None = None) -> Outcome:
        delay = self.retry_delay(message.attempts) if self.retry_delay else None
        return outcome_of(message, error, delay=delay, failure=failure)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls handlers for the messages of a lease, which is no longer renewed for those whose time is up."""

    lease: Lease
    caller: Caller
    limit: timedelta | None
    counts: Counter[str]

    def call(self, handle: Callable[[Any], Any], argument: Any, messages: list[Message]) -> Any:
        """Return what the handler returns; TimeIsUp after the limit for so many messages."""
        return self.caller.call(handle, argument, self.limit and self.limit * len(messages))

    def leave(self, messages: list[Message]) -> None:
        """Stop renewing the messages of a call that hangs; HandlerBroken if too many calls hang."""
        self.lease.let_expire(messages)
        self.counts["timed_out"] += len(messages)
        queue_name = messages[0].queue_name
        log.warning(
            "the handler of queue %s exceeded its time of %s on %s: the lease is no longer renewed, and the call goes "
            "on in a thread that nobody waits for",
            queue_name,
            self.limit and self.limit * len(messages),
            f"message {messages[0].id}" if len(messages) == 1 else quantity(len(messages)),
        )
        if self.caller.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"{self.caller.hanging} calls of the handler of queue {queue_name!r} hang",
                "Start the process again, which ends them, and give what the handler waits for a time-out.",
            )


def outcome_of(
    message: Message, error: BaseException, *, delay: timedelta | None = None, failure: dict[str, str] | None = None
) -> Outcome:
    """Return the outcome of a message whose handler raised: Rejected for RejectMessage, else Retry after `delay`.

    `failure` describes the error, if it was described before.
    """
    if isinstance(error, RejectMessage):
        return Rejected(storable(text_of(error)))
    text = storable(f"{type(error).__name__}: {text_of(error)}"[:4000])
    return Retry(delay, text, failure=failure or describe(error))


def _checked(message: Message, outcome: Any) -> Outcome:
    if outcome is None:
        return Success()
    if not isinstance(outcome, Outcome):
        raise InvalidOutcome(
            f"the handler of queue {message.queue_name!r} returned {type(outcome).__name__} for message {message.id}. "
            "Return None for success, or Success(), Rejected(), Failed() or Retry()."
        )
    return outcome


def _unreadable(message: Message) -> str | None:
    return next((part.reason for part in (message.body, message.headers) if isinstance(part, Unreadable)), None)


def _rejected(messages: Sequence[Message]) -> Iterator[tuple[Message, Outcome]]:
    for message in messages:
        if reason := _unreadable(message):
            yield message, Rejected(f"Python cannot read its JSON: {reason}")


def _by_id(messages: Sequence[Message], outcomes: Any) -> Mapping[int, Any]:
    ids = [message.id for message in messages]
    if outcomes is None:
        return {}
    if isinstance(outcomes, Mapping):
        if unknown := [id_ for id_ in outcomes if id_ not in ids]:
            raise InvalidOutcome(f"the handler gave outcomes for messages that it did not get: {unknown[:10]}")
        return outcomes
    if not isinstance(outcomes, Iterable) or isinstance(outcomes, str | bytes):
        raise InvalidOutcome(
            f"the handler returned {type(outcomes).__name__} for {len(ids)} messages. Return None if all succeeded, "
            "outcomes by message id, or one outcome for each message in order."
        )
    in_order = list(outcomes)
    if len(in_order) != len(ids):
        raise InvalidOutcome(f"the handler returned {len(in_order)} outcomes for {len(ids)} messages. Return one each.")
    return dict(zip(ids, in_order, strict=True))


def _noted(lease: Lease, outcomes: Iterator[tuple[Message, Outcome]]) -> Iterator[tuple[Message, Outcome]]:
    """Pass the outcomes on, and note them in the lease, for whoever settles them beside a handler that hangs."""
    for message, outcome in outcomes:
        lease.handled[message.id] = outcome
        yield message, outcome


def _now_and_then(outcomes: Iterator[tuple[Message, Outcome]], breaker: Breaker) -> Iterator[dict[Message, Outcome]]:
    """Yield the outcomes gathered in each second, and the rest at the end.

    When the handler is broken, failures that were not yielded yet become retries that are no attempts.
    """
    gathered: dict[Message, Outcome] = {}
    due = time.monotonic() + _SETTLE_EVERY
    try:
        for message, outcome in outcomes:
            gathered[message] = outcome
            breaker.note(message, outcome)
            if time.monotonic() >= due and not breaker.suspects:
                yield gathered
                gathered = {}
                due = time.monotonic() + _SETTLE_EVERY
    except HandlerBroken:
        yield {message: _uncounted(outcome) for message, outcome in gathered.items()}
        raise
    except GeneratorExit:
        raise
    except BaseException:
        # What was handled has had its effect: it must not be delivered again because of what came after it.
        if gathered:
            yield gathered
        raise
    if gathered:
        yield gathered


def _uncounted(outcome: Outcome) -> Outcome:
    """Return a failure as a retry that is no attempt: later, so that those behind it come first next time."""
    if not isinstance(outcome, Retry) or failure_of(outcome) is None:
        return outcome
    return replace(outcome, count_attempt=False)


def _settle(lease: Lease, outcomes: dict[Message, Outcome], counts: Counter[str]) -> None:
    held = {message.id for message in lease.held}
    try:
        lease.settle({message: outcome for message, outcome in outcomes.items() if message.id in held})
    except LeaseLost as error:
        # Another consumer has those messages now, and the others are settled: nothing that should end the loop.
        log.warning("%s; they are delivered again", error.problem)
    counts.update(
        "lost" if message.id in lease.lost else "failed" if message.id in lease.unkept else _name(message, outcome)
        for message, outcome in outcomes.items()
    )


def _name(message: Message, outcome: Outcome) -> str:
    match outcome:
        case Success():
            return "success"
        case Rejected():
            return "rejected"
        case Failed():
            return "failed"
        case Retry(count_attempt=counted):
            return "failed" if counted and message.attempts >= message.max_attempts else "retried"
