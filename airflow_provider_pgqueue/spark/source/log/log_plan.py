"""Where the batches of the archive as a log end: planned for the whole backlog, kept until they are done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.spark.source.log.log_end import LogEnd
from airflow_provider_pgqueue.spark.source.session import Session

_STRETCH: Final = 10_000  # messages of one SELECT: its snapshot lasts as long as the sink takes them


@dataclass(frozen=True, slots=True)
class _Step:
    """How far to go: to before transaction `end`, over `messages` rows, the newest of them archived at `at`."""

    end: int
    messages: int
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one SELECT reads."""

    start: int
    end: int
    messages: int = 0


class LogPlan:
    """The next steps from each place, and the time up to which there is known to be nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: dict[tuple[int, int | None], _Step] = {}
        self._empty: tuple[int, LogEnd] | None = None

    def next_step(self, here: int, end: LogEnd, max_messages: int | None) -> _Step | None:
        """Return the step that begins at a place; None if there is nothing before the end of the log."""
        key = (here, max_messages)
        if key not in self._next:
            self._make(here, end, max_messages)
        return self._next.get(key)

    def steps(self, start: int, end: int, max_messages: int | None = None) -> Iterator[_Step]:
        """Cut a stretch, however long it is."""
        while start < end and (steps := self._ask(start, end, max_messages)):
            yield from steps
            start = steps[-1].end

    def parts(self, start: int, end: int, number: int) -> list[list[Stretch]]:
        """Cut a stretch into up to `number` parts with about as many messages each; a part is a few stretches."""
        messages = self._count(start, end)
        parts: dict[int, list[Stretch]] = {}
        seen = 0
        for step in self.steps(start, end, max(1, min(_STRETCH, messages // (number * 4)))):
            part = parts.setdefault(min(number - 1, seen * number // max(1, messages)), [])
            joined = bool(part) and part[-1].messages + step.messages <= _STRETCH
            before = part.pop() if joined else Stretch(start, start)
            part.append(Stretch(before.start, step.end, before.messages + step.messages))
            seen, start = seen + step.messages, step.end
        return list(parts.values())

    def _count(self, start: int, end: int) -> int:
        # It was a step, unless this is after a crash.
        known = (step.messages for (place, _), step in self._next.items() if place == start and step.end == end)
        return next(known, None) or sum(step.messages for step in self.steps(start, end))

    def seen_until(self, here: int, at: datetime) -> datetime:
        """Return until when a query that is at a place since `at` has seen everything: also that there was nothing."""
        return max(at, self._empty[1].moment) if self._empty and self._empty[0] == here else at

    def forget(self, done: int) -> None:
        """Forget the steps before a place."""
        self._next = {key: step for key, step in self._next.items() if key[0] >= done}

    def _make(self, here: int, end: LogEnd, max_messages: int | None) -> None:
        start, place = here, here
        if self._empty and self._empty[0] == here:
            start = max(here, self._empty[1].horizon)
        if start >= end.horizon:
            return
        for step in self._ask(start, end.horizon, max_messages):
            self._next[place, max_messages] = step
            place = step.end
        if place == here:
            self._empty = (here, end)

    def _ask(self, start: int, end: int, max_messages: int | None) -> list[_Step]:
        rows = self._session.ask(verbs.split_archive_log(start, end, max_messages=max_messages))
        return [_Step(row["xid"], row["messages"], row["archived_at"]) for row in rows]
