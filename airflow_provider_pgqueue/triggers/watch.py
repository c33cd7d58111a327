"""Decides when a task or watcher that waits for a queue is notified.

A notification says that there is work, but not which: it has numbers and topics, and its receiver leases. It is
repeated as long as work remains, so that a lost notification costs time but never a message.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.message import RESULTS, DeadQueue, OutcomeCount, ReadyQueue
from airflow_provider_pgqueue.core.verbs import Statement

Notification = dict[str, Any]
NotifiedTimes = deque[datetime]
"""When consumers of one queue were notified, by the clock of the server."""
_GAP: Final = 2.0  # seconds between two notifications: what arrives meanwhile is one burst
_RAREST: Final = 300.0  # seconds between two notifications while nothing changes
_COUNT_UP_TO: Final = 1000
_CAUSES: Final = 20  # in a notification


@dataclass(slots=True, kw_only=True)
class Watch(ABC):
    """Waits for one queue: receives the rows of each poll, and decides whether to notify.

    New work leads to a notification at once, but at least two seconds after the last one. If the work remains, the
    notification is repeated after `notify_every` seconds. While nothing at all changes, the pause doubles with each
    notification, up to five minutes; a change resets it.
    """

    of_queue: ClassVar[bool] = True
    """Whether the watch waits for a queue, which may be missing or paused."""

    queue_name: str = ""
    poll_interval: float = 30.0
    notify_every: float = 10.0
    _notified_at: float = field(default=-math.inf, init=False)
    _fruitless: int = field(default=0, init=False)
    """How many notifications in a row have changed nothing."""
    _state: Hashable = field(default=None, init=False)
    _changed: bool = field(default=True, init=False)
    """Whether the state has changed since the last notification."""
    _was_empty: bool = field(default=True, init=False)
    poll_in: float = field(default=0.0, init=False)
    """Seconds until the next poll if no NOTIFY arrives before."""

    @property
    def question(self) -> Hashable:
        """A key that is the same for all watches that one query serves."""
        return type(self)

    @property
    def asks_every(self) -> float:
        """The minimum seconds between two polls, even if a NOTIFY arrives meanwhile."""
        return 0.0

    @property
    def keys(self) -> Collection[Hashable]:
        """The keys of the rows that the watch waits for."""
        return (self.queue_name,)

    @staticmethod
    def key_of(row: Any) -> Hashable:
        """Return the key of a row."""
        key: str = row.queue_name
        return key

    @classmethod
    @abstractmethod
    def ask(cls, watches: Collection[Self]) -> Statement[Any]:
        """Return the one query that serves all these watches, which have the same `question`."""

    @abstractmethod
    def _check(self, rows: Sequence[Any], since_notified: float) -> tuple[Notification | None, bool]:
        """Return a notification if the rows call for one, and whether new work came after the last one."""

    def _state_of(self, rows: Sequence[Any], now: float) -> Hashable:
        """Return a value that changes whenever messages are leased or archived, or new messages arrive."""
        return None

    def receive(self, rows: Sequence[Any], now: float) -> Notification | None:
        """Return the notification for the rows of a poll, if one is due now; `now` is monotonic seconds."""
        self.poll_in = self.poll_interval
        notification, is_new = self._check(rows, now - self._notified_at)
        if notification is None:
            self._see_nothing()
            return None
        state = self._state_of(rows, now)
        if state != self._state:
            self._state, self._changed, self._fruitless = state, True, 0
        pause = _GAP if is_new or self._was_empty else self._pause()
        if now - self._notified_at < pause:
            self.poll_in = min(self.poll_in, self._notified_at + pause - now)
            return None
        self._fruitless = 0 if self._changed else self._fruitless + 1
        self._notified_at, self._changed, self._was_empty = now, False, False
        self.poll_in = min(self.poll_in, self._pause())
        return notification

    def _see_nothing(self) -> None:
        # Messages that come next are new, however old they are: their lease may have expired.
        self._was_empty, self._state = True, None

    def _pause(self) -> float:
        longest = max(self.notify_every, _RAREST)
        return max(_GAP, min(self.notify_every * 2.0**self._fruitless, longest))


@dataclass(slots=True, kw_only=True)
class MessageWatch(Watch):
    """Waits for `min_messages` ready messages, or for one that has been ready for `max_wait` seconds."""

    min_messages: int = 1
    max_wait: float | None = None

    @classmethod
    def ask(cls, watches: Collection[Self]) -> Statement[list[ReadyQueue]]:
        return verbs.scan(
            sorted({watch.queue_name for watch in watches}),
            count_up_to=max(_COUNT_UP_TO, *(watch.min_messages for watch in watches)),
        )

    def _check(self, rows: Sequence[ReadyQueue], since_notified: float) -> tuple[Notification | None, bool]:
        if not rows or not rows[0].ready or rows[0].oldest_age is None:
            return None, False
        ready, age = rows[0].ready, rows[0].oldest_age.total_seconds()
        if ready < self.min_messages and (self.max_wait is None or age < self.max_wait):
            if self.max_wait is not None:
                self.poll_in = min(self.poll_in, self.max_wait - age)
            return None, False
        notification = {
            "queue_name": self.queue_name,
            "ready": ready,
            "oldest_age": round(age, 3),
            "topics": rows[0].topics,
        }
        # If even the oldest message is younger than the last notification, all messages before it have been taken.
        return notification, age < since_notified

    def _state_of(self, rows: Sequence[ReadyQueue], now: float) -> Hashable:
        # The time of the oldest message too, because `ready` counts only up to a thousand.
        return rows[0].ready, getattr(rows[0], "oldest_at", None), tuple(rows[0].topics)


@dataclass(slots=True, kw_only=True)
class ConsumerWatch(MessageWatch):
    """Waits for a message to lease. At most as many consumers of a queue are notified as messages are ready.

    A consumer that was notified counts for `poll_interval` seconds, or until all that was ready then has been taken.
    """

    _notified: NotifiedTimes = field(default_factory=deque, init=False)

    @property
    def question(self) -> Hashable:
        """The same key as that of a `MessageWatch`, so that one query serves both."""
        return MessageWatch

    def share(self, shared: MutableMapping[str, NotifiedTimes]) -> None:
        """Count notifications together with the other watches of the queue; call this before the first poll."""
        self._notified = shared.setdefault(self.queue_name, self._notified)

    def receive(self, rows: Sequence[Any], now: float) -> Notification | None:
        notification = MessageWatch.receive(self, rows, now)  # super() finds no class with slots
        if notification is None:
            return None
        oldest_at, lasts = rows[0].oldest_at, timedelta(seconds=self.poll_interval)
        moment = oldest_at + rows[0].oldest_age
        while self._notified and self._notified[0] <= max(oldest_at, moment - lasts):
            self._notified.popleft()
        if len(self._notified) >= rows[0].ready:
            self._notified_at, self.poll_in = -math.inf, (self._notified[0] + lasts - moment).total_seconds()
            return None
        self._notified.append(moment)
        return notification


@dataclass(slots=True, kw_only=True)
class DeadMessageWatch(Watch):
    """Waits for open dead messages that are not leased, with these `results` or any."""

    results: Sequence[str] | None = None

    @classmethod
    def ask(cls, watches: Collection[Self]) -> Statement[list[DeadQueue]]:
        return verbs.dead_queues(sorted({watch.queue_name for watch in watches}))

    def _check(self, rows: Sequence[DeadQueue], since_notified: float) -> tuple[Notification | None, bool]:
        rows = [row for row in rows if self._counts(row)]
        if not rows:
            return None, False
        newest = max(row.newest_id for row in rows)
        causes = sorted((cause for row in rows for cause in row.causes), key=lambda one: -one["waiting"])
        return {
            "queue_name": self.queue_name,
            "waiting": sum(row.waiting for row in rows),
            "newest_id": newest,
            "oldest_age": round(max(row.oldest_age for row in rows).total_seconds(), 3),
            "causes": causes[:_CAUSES],
        }, min(row.newest_age for row in rows).total_seconds() < since_notified

    def _state_of(self, rows: Sequence[DeadQueue], now: float) -> Hashable:
        return frozenset((row.result, row.waiting, row.newest_id) for row in rows if self._counts(row))

    def _counts(self, row: DeadQueue) -> bool:
        return self.results is None or row.result in self.results

    def _see_nothing(self) -> None:
        """Keep the pauses: dead messages that a repair leased and gave back are not new."""


@dataclass(slots=True, kw_only=True)
class OutcomeWatch(Watch):
    """Waits until messages are finished: those with these `ids`, or `expected` of them with this `reference`.

    No NOTIFY announces a finished message, so the query runs every `poll_interval` seconds. The notification has the
    number of messages for each of the `RESULTS`, and for `unknown`.
    """

    of_queue: ClassVar[bool] = False

    ids: Sequence[int] | None = None
    reference: str | None = None
    expected: int | None = None
    follow_requeues: bool = False

    @property
    def question(self) -> Hashable:
        ids = None if self.ids is None else tuple(self.ids)
        return type(self), ids, self.reference, self.queue_name, self.follow_requeues

    @property
    def asks_every(self) -> float:
        return self.poll_interval

    @property
    def keys(self) -> Collection[Hashable]:
        return (None,)

    @staticmethod
    def key_of(row: Any) -> Hashable:
        return None

    @classmethod
    def ask(cls, watches: Collection[Self]) -> Statement[list[OutcomeCount]]:
        one = next(iter(watches))
        return verbs.outcome_counts(
            one.ids,
            reference=one.reference,
            queue_name=one.queue_name or None,
            follow_requeues=one.follow_requeues,
        )

    def _check(self, rows: Sequence[OutcomeCount], since_notified: float) -> tuple[Notification | None, bool]:
        counts = {row.result: row.number for row in rows}
        if None in counts or sum(counts.values()) < (self.expected or 0):
            return None, False
        return {**dict.fromkeys(RESULTS, 0), **counts}, True
