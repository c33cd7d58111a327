"""The values that go in and out of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, get_args
from uuid import UUID

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.quantity import seen

Row = dict[str, Any]
DeadResult = Literal["failed", "rejected", "lock_expired", "expired"]
DEAD_RESULTS: Final = get_args(DeadResult)
Result = Literal["success", DeadResult, "cancelled"]
RESULTS: Final = get_args(Result)
Counted = Literal["depth", "ready", "leased", "delayed", "dead"]
COUNTED: Final = get_args(Counted)

# The columns that a publisher gives and a message keeps, from its lease to the archive, an export and a requeue.
TRAVELS: Final = {
    "priority": "smallint", "headers": "jsonb", "reference": "text", "topic": "text", "group_key": "text",
}  # fmt: skip
TEXTS: Final = [name for name, kind in TRAVELS.items() if kind == "text"]
# Each message of a batch has its own: a batch is given lists of them, with these names.
PLURALS: Final = {name: f"{name}s" for name in (*TEXTS, "dedup_key")}


class _Common(TypedDict, total=False):
    priority: int
    delay: Duration
    expires_in: Duration | None
    headers: Mapping[str, Any] | None
    visible_at: datetime | None


class TopicOptions(_Common, total=False):
    """The options of a message that is published to a topic, as in `Options`."""

    reference: str | None
    group_key: str | None
    dedup_key: str | None


class Options(TopicOptions, total=False):
    """The options of a message.

    - `priority`: from 0 to 9; higher is leased first.
    - `delay`, `visible_at`: it is not leased before.
    - `expires_in`: it is archived as `expired` if nobody handled it by then.
    - `headers`: an object kept next to the body, of at most 64 kB.
    - `reference`: a text to find it by, of at most 2,600 bytes.
    - `topic`: words with dots between them that name the kind of message.
    - `group_key`: messages of a group are leased one at a time and in order.
    - `dedup_key`: it is published once in `dedup_window`, by default the window of the queue. With
      `on_conflict="replace"` a repeated key replaces the body of a message that still waits. Without a key either is
      an InvalidArgument.
    """

    topic: str | None
    dedup_window: Duration | None
    on_conflict: str


class BatchOptions(_Common, total=False):
    """The options of a batch: those of `Options`; the plural ones are sequences with a value or None for each body.

    If a batch has a dedup key twice, its first body counts, or with `on_conflict="replace"` its last.
    """

    references: Sequence[str | None] | None
    topics: Sequence[str | None] | None
    group_keys: Sequence[str | None] | None
    dedup_keys: Sequence[str | None] | None
    dedup_window: Duration | None
    on_conflict: str


class Duplicate(int):
    """The id of the earlier message with the same dedup key, returned instead of a new id: nothing was published."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a body or headers that Python cannot read, such as those with a number of 5,000 digits.

    A Consumer rejects such a message and does not call its handler.
    """

    reason: str


# Not frozen: a consumer makes thousands in a second, and a frozen one takes over three times as long.
@dataclass(slots=True, eq=False)
class Message:
    """A message as a consumer gets it. `lock_token` is None if it was consumed and not leased.

    Messages with the same `group_key` are leased one at a time and in order.
    """

    id: int
    queue_name: str
    body: Any
    headers: Any
    reference: str | None
    topic: str | None
    group_key: str | None
    priority: int
    attempts: int
    max_attempts: int
    requeues: int
    created_at: datetime
    lock_token: UUID | None = None
    lock_expires_at: datetime | None = None

    @property
    def unreadable(self) -> str | None:
        """Why Python cannot read its body or headers, None if it can."""
        if isinstance(self.body, Unreadable):
            return self.body.reason
        return self.headers.reason if isinstance(self.headers, Unreadable) else None

    def __repr__(self) -> str:
        """Name the message without its body, which must not reach a log."""
        return f"<Message {self.id} of {self.queue_name}, attempt {self.attempts} of {self.max_attempts}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeadMessage:
    """A message that was archived without success, leased in order to requeue or dismiss it.

    `failure` is the last failure, with `error`, `message` and `traceback` as far as the consumer gave them.
    """

    id: int
    queue_name: str
    result: str
    details: str | None
    failure: dict[str, Any] | None
    body: Any
    headers: Any
    reference: str | None
    topic: str | None
    group_key: str | None
    attempts: int
    requeues: int
    created_at: datetime
    archived_at: datetime
    handled_by: str | None
    lock_token: UUID
    lock_expires_at: datetime

    def __repr__(self) -> str:
        """Name the message without its body, which must not reach a log."""
        return f"<DeadMessage {self.id} of {self.queue_name}, {self.result}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyQueue:
    """A queue with messages to lease now (`ready`, counted up to a bound) or later (`next_in`).

    `topics` are up to twenty different ones of those that were counted.
    """

    queue_name: str
    ready: int
    oldest_age: timedelta | None
    next_in: timedelta | None
    topics: list[str]
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedQueue:
    """A queue that no consumer should wait for: it is `paused`, or the login sees no queue of this name."""

    queue_name: str
    paused: bool

    def __str__(self) -> str:
        return f"{self.problem}: waiting until it {'is resumed' if self.paused else 'does'}"

    @property
    def problem(self) -> str:
        """Why no messages come from the queue."""
        why = "is paused" if self.paused else "does not exist, or this login may not see it"
        return f"queue {self.queue_name!r} {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadQueue:
    """A queue with open dead messages of one result that are not leased.

    `causes` has the thousand most frequent causes, with times as ISO texts: `{"result", "fingerprint", "waiting",
    "first_at", "last_at", "newest_id"}`.
    """

    queue_name: str
    result: str
    waiting: int
    newest_id: int
    oldest_age: timedelta
    newest_age: timedelta
    causes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The numbers of a queue. `depth` is `ready` + `leased` + `delayed`.

    Where `depth` or `dead` is larger than `counted_up_to`, there are more than that, and the number is the planner's.
    `limited_until` is when rate_limit and max_leased of the queue allow the next lease, if no lease ends or is extended
    before; None if they allow one now.
    """

    queue_name: str
    paused: bool
    depth: int
    ready: int
    leased: int
    delayed: int
    oldest_age: timedelta | None
    dead: int
    maintenance_age: timedelta | None
    counted_up_to: int | None
    limited_until: datetime | None

    def seen(self, name: Counted) -> int:
        """Return a number as people see it: `10,000+` where there are more than were counted."""
        return seen(getattr(self, name), self.dead if name == "dead" else self.depth, self.counted_up_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """How long a lease of a queue lasts, and how long a handler may take for a message; None is forever.

    `counts_leases` says whether the queue has a max_leased, so that its consumers lease one after another, and
    `limits_rate` whether it has a rate, so that its consumers poll again when the next lease may begin.
    """

    lease_for: timedelta
    handler_timeout: timedelta | None
    counts_leases: bool = False
    limits_rate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Messages `ids` of a queue and the DAG run that has them; `started_at` is None until the run is known to exist."""

    dispatch_id: int
    queue_name: str
    dag_id: str
    run_id: str
    ids: list[int]
    opened_at: datetime
    started_at: datetime | None
    seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class Requeued:
    """A dead message `id` that was published again as `new_id`."""

    id: int
    new_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadCause:
    """One cause of the open dead messages of a queue; `example` is the error of the newest message."""

    queue_name: str
    result: str
    fingerprint: str | None
    waiting: int
    first_at: datetime
    last_at: datetime
    newest_id: int
    example: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOutcome:
    """What became of message `id`; `result` is None while it is unfinished, `unknown` if this login does not see it.

    `last_id` is the message that repeats it, if requeues were followed. `failure` is the class of the last error.
    """

    id: int
    last_id: int
    queue_name: str | None
    result: str | None
    attempts: int | None
    failure: str | None
    fingerprint: str | None
    output: Any

    def __str__(self) -> str:
        what = "is not finished" if self.result is None else f"ended as {self.result}"
        if self.result == "unknown":
            what = "does not exist, or no longer, or this login may not see it"
        repeated = f", repeated as {self.last_id}," if self.last_id != self.id else ""
        of = f" of queue {self.queue_name}" if self.queue_name else ""
        why = ", ".join(filter(None, (self.failure, self.fingerprint and f"cause {self.fingerprint}")))
        return f"message {self.id}{of}{repeated} {what}{f' ({why})' if why else ''}"


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """The `number` of messages that ended with a `result`, which is None or `unknown` as in `MessageOutcome`."""

    result: str | None
    number: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of `health()`. `severity` is `ok`, `warning` or `critical`; `fix` is SQL to run."""

    check_name: str
    severity: str
    finding: str
    fix: str | None = None
