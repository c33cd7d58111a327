"""Decides when somebody who waits for a queue is rung.

A doorbell says that there is work, not which: it has numbers and topics, and whoever hears it leases. It rings as long
as work remains, so that a lost ring costs time but never a message.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.message import RESULTS, DeadQueue, OutcomeCount, ReadyQueue
from airflow_provider_pgqueue.core.verbs import Statement

Doorbell = dict[str, Any]
_GAP: Final = 2.0  # seconds between two rings: what arrives meanwhile is one burst
_RAREST: Final = 30  # times ring_every, when ring after ring changes nothing
_COUNT_UP_TO: Final = 1000
_CAUSES: Final = 20  # in a doorbell


@dataclass(slots=True, kw_only=True)
class Watch(ABC):
    """Waits for one queue: gets what each look found, and says whether to ring.

    New work rings at once, though no sooner than two seconds after the last ring. Work that was already there at the
    last ring rings again after `ring_every` seconds, then after twice that and so on, up to 30 times.
    """

    of_queue: ClassVar[bool] = True
    """Whether it waits for a queue, which might not exist or be paused."""

    queue_name: str = ""
    poll_interval: float = 30.0
    ring_every: float = 10.0
    _rung_at: float = field(default=-math.inf, init=False)
    _repeats: int = field(default=0, init=False)
    look_in: float = field(default=0.0, init=False)
    """Seconds until the next look is needed if nothing rings before."""

    @property
    def question(self) -> Hashable:
        """The same for watches that one query serves."""
        return type(self)

    @property
    def asks_every(self) -> float:
        """The seconds between two looks, whatever rings meanwhile."""
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
    def _judge(self, rows: Sequence[Any], since_ring: float) -> tuple[Doorbell | None, bool]:
        """Return the doorbell if the rows of this queue are worth one, and whether there is work since the last."""

    def hear(self, rows: Sequence[Any], now: float) -> Doorbell | None:
        """Return the doorbell to ring now, if any, for what a look found in this queue; `now` is monotonic seconds."""
        self.look_in = self.poll_interval
        doorbell, is_new = self._judge(rows, now - self._rung_at)
        if doorbell is None:
            self._see_nothing()
            return None
        pause = _GAP if is_new or not self._repeats else self._pause()
        if now - self._rung_at < pause:
            self.look_in = min(self.look_in, self._rung_at + pause - now)
            return None
        self._repeats = 1 if is_new else self._repeats + 1
        self._rung_at = now
        self.look_in = min(self.look_in, self._pause())
        return doorbell

    def _see_nothing(self) -> None:
        # What comes next is new, however old it is: its lease may have expired.
        self._repeats = 0

    def _pause(self) -> float:
        return max(_GAP, self.ring_every * min(2.0 ** (self._repeats - 1), _RAREST))


@dataclass(slots=True, kw_only=True)
class MessageWatch(Watch):
    """Waits for `min_messages` ready messages, or for one that has been ready for `max_wait` seconds."""

    min_messages: int = 1
    max_wait: float | None = None

    @classmethod
    def ask(cls, watches: Collection[Self]) -> Statement[list[ReadyQueue]]:
        return verbs.ready_queues(
            sorted({watch.queue_name for watch in watches}),
            count_up_to=max(_COUNT_UP_TO, *(watch.min_messages for watch in watches)),
        )

    def _judge(self, rows: Sequence[ReadyQueue], since_ring: float) -> tuple[Doorbell | None, bool]:
        if not rows or not rows[0].ready or rows[0].oldest_age is None:
            return None, False
        ready, age = rows[0].ready, rows[0].oldest_age.total_seconds()
        if ready < self.min_messages and (self.max_wait is None or age < self.max_wait):
            if self.max_wait is not None:
                self.look_in = min(self.look_in, self.max_wait - age)
            return None, False
        doorbell = {
            "queue_name": self.queue_name,
            "ready": ready,
            "oldest_age": round(age, 3),
            "topics": rows[0].topics,
        }
        # If even the oldest came after the last ring, then all that rang before has been taken.
        return doorbell, age < since_ring


@dataclass(slots=True, kw_only=True)
class DeadMessageWatch(Watch):
    """Waits for dead messages without a remedy and without a lease, with these `results` or any."""

    results: Sequence[str] | None = None

    @classmethod
    def ask(cls, watches: Collection[Self]) -> Statement[list[DeadQueue]]:
        return verbs.dead_queues(sorted({watch.queue_name for watch in watches}))

    def _judge(self, rows: Sequence[DeadQueue], since_ring: float) -> tuple[Doorbell | None, bool]:
        rows = [row for row in rows if self.results is None or row.result in self.results]
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
        }, min(row.newest_age for row in rows).total_seconds() < since_ring

    def _see_nothing(self) -> None:
        """Keep the pauses: dead messages that a repair leased and gave back are no news."""


@dataclass(slots=True, kw_only=True)
class OutcomeWatch(Watch):
    """Waits until messages are finished: those with these `ids`, or `expected` of them with this `reference`.

    No notification tells of that, so it is asked every `poll_interval` seconds. The doorbell has the number of messages
    for each of the `RESULTS`, and for `unknown`.
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

    def _judge(self, rows: Sequence[OutcomeCount], since_ring: float) -> tuple[Doorbell | None, bool]:
        counts = {row.result: row.number for row in rows}
        if None in counts or sum(counts.values()) < (self.expected or 0):
            return None, False
        return {**dict.fromkeys(RESULTS, 0), **counts}, True
