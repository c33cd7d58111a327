"""Decides when somebody who waits for a queue is notified.

A notification says that there is work, not which: it has numbers and topics, and whoever receives it leases. It is
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
    """Waits for one queue: gets what each poll found, and says whether to notify.

    New work is notified at once, though no sooner than two seconds after the last notification. Work that was already
    there then is notified again after `notify_every` seconds. While nothing at all changes, the pause doubles with
    each notification, up to five minutes; a change ends that.
    """

    of_queue: ClassVar[bool] = True
    """Whether it waits for a queue, which might not exist or be paused."""

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
    """Seconds until the next poll is needed if no notification arrives before."""

    @property
    def question(self) -> Hashable:
        """The same for watches that one query serves."""
        return type(self)

    @property
    def asks_every(self) -> float:
        """The seconds between two polls, whatever is notified meanwhile."""
        return 0.0

    @property
    def keys(self) -> Collection[Hashable]:
        """What it waits for: the keys of its rows."""
        return (self.queue_name,)

    @staticmethod
    def key_of(row: Any) -> Hashable:
        """Return what a row is about."""
        key: str = row.queue_name
        return key

    @classmethod
    @abstractmethod
    def ask(cls, watches: Collection[Self]) -> Statement[Any]:
        """Return the one query that serves all these watches, which have the same `question`."""

    @abstractmethod
    def _check(self, rows: Sequence[Any], since_notified: float) -> tuple[Notification | None, bool]:
        """Return a notification if the rows call for one, and whether there is work since the last."""

    def _state_of(self, rows: Sequence[Any], now: float) -> Hashable:
        """Return what is another as soon as messages were leased or archived, or new ones came."""
        return None

    def receive(self, rows: Sequence[Any], now: float) -> Notification | None:
        """Return the notification to send now, if any, for what a poll found; `now` is monotonic seconds."""
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
        # What comes next is new, however old it is: its lease may have expired.
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
        # If even the oldest came after the last notification, then all that was there before has been taken.
        return notification, age < since_notified

    def _state_of(self, rows: Sequence[ReadyQueue], now: float) -> Hashable:
        # The time of the oldest too, because `ready` counts no further than to a thousand.
        return rows[0].ready, getattr(rows[0], "oldest_at", None), tuple(rows[0].topics)


@dataclass(slots=True, kw_only=True)
class ConsumerWatch(MessageWatch):
    """Waits for a message to take. At most as many consumers of a queue are notified as messages are ready.

    A consumer that was notified counts for `poll_interval` seconds, or until all that was ready then has been taken.
    """

    _notified: NotifiedTimes = field(default_factory=deque, init=False)

    @property
    def question(self) -> Hashable:
        """The same as that of a MessageWatch, so that one query serves both."""
        return MessageWatch

    def share(self, shared: MutableMapping[str, NotifiedTimes]) -> None:
        """Count the notifications together with the others of the queue; call it before the first poll."""
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
    """Waits for open dead messages that nobody has leased, with these `results` or any."""

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
        """Keep the pauses: dead messages that a repair leased and gave back are no news."""


@dataclass(slots=True, kw_only=True)
class OutcomeWatch(Watch):
    """Waits until messages are finished: those with these `ids`, or `expected` of them with this `reference`.

    No notification tells of that, so it is asked every `poll_interval` seconds. The notification has the number of
    messages for each of the `RESULTS`, and for `unknown`.
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
