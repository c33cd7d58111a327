"""The consumer loop: lease a batch, handle it, archive each message with its outcome, until the queue is empty."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidOutcome, LeaseLost
from airflow_provider_pgqueue.core.lease import Lease, Renewal
from airflow_provider_pgqueue.core.message import Message
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

log = logging.getLogger(__name__)

Handler = Callable[[Message], Outcome | None]
BatchHandler = Callable[[list[Message]], Mapping[int, Outcome | None] | Iterable[Outcome | None] | None]
# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all. Seconds.
_SETTLE_EVERY = 1.0
_SAY_EVERY = 5.0  # seconds


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

    `lease_for` is renewed while the handler works. With a `topic` pattern or `headers` only matching messages are
    leased; the others stay in the queue.
    """

    queue_name: str
    handle: Handler | None = None
    handle_batch: BatchHandler | None = None
    batch_size: int = 100
    lease_for: timedelta = timedelta(minutes=5)
    retry_delay: Callable[[int], timedelta] | None = None
    handled_by: str | None = None
    topic: str | None = None
    headers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.handle_batch is None):
            raise InvalidArgument("give exactly one of handle and handle_batch")

    def drain(
        self,
        conn: psycopg.Connection[Any],
        *,
        max_messages: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda counts: None,
        on_lease: Callable[[Lease], None] = lambda lease: None,
    ) -> Counter[str]:
        """Handle messages until the queue has none ready, `max_messages` were leased, or `stop` returns True.

        Returns how many messages ended as `success`, `rejected`, `failed`, `retried` (delivered again later),
        `released` (not started) and `lost` (the lease ended first, and another consumer gets them). After `stop` the
        current message is finished and the rest of the batch released without counting an attempt.

        A crash loses nothing: messages that were handled but not yet archived, at most a batch, are delivered again.
        `on_batch` is called with the counts so far after each batch, `on_lease` with each lease, whose `give_back` and
        `give_up` free the messages beside a handler that does not return.
        """
        counts: Counter[str] = Counter()
        leased, said = 0, time.monotonic()
        # One thread for the whole loop: quick batches would each start one for nothing.
        with Renewal(self.lease_for) as renewal:
            while not stop() and (max_messages is None or leased < max_messages):
                wanted = self.batch_size if max_messages is None else min(self.batch_size, max_messages - leased)
                messages = self._lease(conn, wanted)
                if not messages:
                    break
                leased += len(messages)
                lease = Lease(conn, messages, lease_for=self.lease_for, handled_by=self.handled_by, renewal=renewal)
                on_lease(lease)
                self._work(lease, messages, stop, counts)
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

    def _work(self, lease: Lease, messages: list[Message], stop: Callable[[], bool], counts: Counter[str]) -> None:
        outcomes = self._each(self.handle, lease, messages, stop) if self.handle else self._all_at_once(lease, messages)
        with lease:
            try:
                for settled in _now_and_then(_noted(lease, outcomes)):
                    _settle(lease, settled, counts)
            except BaseException as error:
                if isinstance(error, InvalidOutcome) or not isinstance(error, Exception):
                    # The loop ends for a reason that is not in these messages.
                    lease.release(lease.held, count_attempt=False)
                raise
            if unstarted := lease.held:
                # Nobody began them, so it was no attempt.
                counts["released"] += len(unstarted)
                lease.release(unstarted, count_attempt=False)

    def _each(
        self, handle: Handler, lease: Lease, messages: list[Message], stop: Callable[[], bool]
    ) -> Iterator[tuple[Message, Outcome]]:
        for message in messages:
            # Before the question: whoever stops the loop in between must not take it for a message that nobody began.
            lease.in_hand = {message.id}
            if stop():
                return
            if message.id in lease.lost:
                continue
            try:
                returned = handle(message)
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

    def _all_at_once(self, lease: Lease, messages: list[Message]) -> Iterator[tuple[Message, Outcome]]:
        lease.in_hand = {message.id for message in messages}
        try:
            returned = self.handle_batch(messages) if self.handle_batch else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            for message in messages:
                yield message, self._outcome(message, error)
            if not isinstance(error, Exception):
                raise
            return
        outcomes = _by_id(messages, returned)
        for message in messages:
            yield message, _checked(message, outcomes.get(message.id))

    def _outcome(self, message: Message, error: BaseException) -> Outcome:
        return outcome_of(message, error, delay=self.retry_delay(message.attempts) if self.retry_delay else None)


def outcome_of(message: Message, error: BaseException, *, delay: timedelta | None = None) -> Outcome:
    """Return the outcome of a message whose handler raised: Rejected for RejectMessage, else Retry after `delay`."""
    if isinstance(error, RejectMessage):
        return Rejected(storable(text_of(error)))
    # The text of the error may quote the body: it goes to the archive, which has the body anyway, not to the log.
    log.warning("message %s of queue %s raised %s", message.id, message.queue_name, type(error).__name__)
    return Retry(delay, storable(f"{type(error).__name__}: {text_of(error)}"[:4000]), failure=describe(error))


def _checked(message: Message, outcome: Any) -> Outcome:
    if outcome is None:
        return Success()
    if not isinstance(outcome, Outcome):
        raise InvalidOutcome(
            f"the handler of queue {message.queue_name!r} returned {type(outcome).__name__} for message {message.id}. "
            "Return None for success, or Success(), Rejected(), Failed() or Retry()."
        )
    return outcome


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


def _now_and_then(
    outcomes: Iterator[tuple[Message, Outcome]],
) -> Iterator[dict[Message, Outcome]]:
    """Yield the outcomes gathered in each second, and the rest at the end."""
    gathered: dict[Message, Outcome] = {}
    due = time.monotonic() + _SETTLE_EVERY
    try:
        for message, outcome in outcomes:
            gathered[message] = outcome
            if time.monotonic() >= due:
                yield gathered
                gathered = {}
                due = time.monotonic() + _SETTLE_EVERY
    except GeneratorExit:
        raise
    except BaseException:
        # What was handled has had its effect: it must not be delivered again because of what came after it.
        if gathered:
            yield gathered
        raise
    if gathered:
        yield gathered


def _settle(lease: Lease, outcomes: dict[Message, Outcome], counts: Counter[str]) -> None:
    held = {message.id for message in lease.held}
    try:
        lease.settle({message: outcome for message, outcome in outcomes.items() if message.id in held})
    except LeaseLost as error:
        # Another consumer has those messages now, and the others are settled: nothing that should end the loop.
        log.warning("%s", error)
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
