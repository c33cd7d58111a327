"""The position of a query in the archive as a log, the end of the log, and the transaction that holds the end back.

A place in the log is the number of a transaction: everything that transactions before it archived lies before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.export.connection import Session

log = logging.getLogger(__name__)

_POLL_EVERY: Final = 0.1  # seconds between two polls: Spark asks an idle stream every 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPace:
    """How often to poll the end of the log, and how much of the log to read at once.

    :param longest_rest: the most seconds between two polls, however long they take.
    :param worth: rest so many times as long as a poll takes, so that polls take at most 2 % of the time.
    :param held_for: seconds until an end that does not move is worth a warning, and the next one.
    :param stretch: messages of one SELECT: its snapshot lasts as long as the sink takes them.
    """

    longest_rest: float = 5.0
    worth: float = 50
    held_for: float = 30.0
    stretch: int = 10_000


USUAL_PACE: Final = LogPace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The content of a checkpoint: a place, its database, and the last removal before the query began.

    :param removals: the number of that removal. Messages after the place that a later removal took are lost.
    :param since: where the batch begins. Spark stores the start of every batch but the first, and asks for that again.
    """

    system: str
    xid: int
    removals: int = 0
    since: int | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(**{name: value[name] for name in ("system", "xid", "removals", "since") if name in value})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The current end of the log and its removals: the row of `messages.archive_log_end()`."""

    system: str
    horizon: int
    removals: int
    gone_before_xid: int
    gone_until: datetime | None
    holder_pid: int | None
    holder_application: str | None
    holder_age: timedelta | None

    def offset(self) -> Offset:
        return Offset(system=self.system, xid=self.horizon, removals=self.removals)

    def check(self, start: Offset, *, former_system: str | None = None) -> None:
        """Raise InvalidArgument unless an offset is of this log and not behind its end."""
        if start.system not in (self.system, former_system):
            raise InvalidArgument(
                f"the checkpoint is of the database {start.system}, and this one is {self.system}: its transactions "
                "have other numbers. Start the query with a new checkpoint; only after pg_upgrade, which keeps the "
                f"numbers, continue with option formerSystem = {start.system}."
            )
        if self.horizon < start.xid:
            raise InvalidArgument(
                f"the query has read to transaction {start.xid}, and this server knows those before "
                f"{self.horizon}: it was restored from a backup, or is a replica that is behind. "
                "Start the query with a new checkpoint, or connect to the primary."
            )


class LogWatch:
    """Polls the end of the log, and warns when a transaction holds the end back.

    It polls at most ten times a second, and less often if a poll takes long: a query sees archived messages at most
    five seconds late.
    """

    def __init__(self, session: Session, queue_names: Sequence[str] = (), pace: LogPace = USUAL_PACE) -> None:
        self._session = session
        self._queue_names = queue_names or None
        self._pace = pace
        self._after_removal = 0
        self._rest = min(_POLL_EVERY, pace.longest_rest)
        self._end: LogEnd | None = None
        self._polled = self._moved = self._warned = 0.0

    def end(self, *, after_removal: int | None = None, now: bool = False) -> LogEnd:
        """Return where the log ends, read lately or `now`, and what is gone since a removal, by default the same."""
        if after_removal not in (None, self._after_removal):
            self._after_removal, now = after_removal, True
        if self._end is None or now or time.monotonic() - self._polled >= self._rest:
            self._end = self._poll(self._end)
        return self._end

    def found_nothing(self, seconds: float) -> None:
        """Set the rest before the next poll by how long the queries of this one took; without a query it stays."""
        if seconds:
            self._rest = min(self._pace.longest_rest, max(_POLL_EVERY, self._pace.worth * seconds))

    def _poll(self, before: LogEnd | None) -> LogEnd:
        asked = verbs.archive_log_end(after_removal=self._after_removal, queue_names=self._queue_names)
        end = LogEnd(**self._session.ask(asked))
        self._polled = time.monotonic()
        if before is None or before.horizon != end.horizon:
            self._moved = self._polled
        elif end.holder_age is not None and self._polled - max(self._moved, self._warned) >= self._pace.held_for:
            self._warned = self._polled
            log.warning(
                "the log waits at transaction %s: session %s (application %s) has it open for %s and may yet archive",
                end.horizon,
                end.holder_pid,
                end.holder_application or "without a name",
                end.holder_age,
            )
        return end


@dataclass(frozen=True, slots=True)
class Stretch:
    """The transactions from `start` to before `end`, with so many messages."""

    start: int
    end: int
    messages: int = 0


class LogPlan:
    """Plans ahead by which steps a query goes through the log, of some queues or of all."""

    def __init__(self, session: Session, queue_names: Sequence[str] = (), pace: LogPace = USUAL_PACE) -> None:
        self._session = session
        self._queue_names = queue_names or None
        self._pace = pace
        self._next: dict[int, Stretch] = {}  # by the place where the query is before the step
        self._nothing: dict[int, int] = {}  # up to where nothing was found, by the place where the query is

    def next_step(self, here: int, end: LogEnd, max_messages: int | None) -> Stretch | None:
        """Return the step that begins at a place; None if there is nothing before the end of the log.

        Steps are planned ahead, so `max_messages` has to be the same each time.
        """
        if here not in self._next:
            self._make(here, end, max_messages)
        return self._next.get(here)

    def parts(self, start: int, end: int, number: int) -> list[list[Stretch]]:
        """Cut a stretch into up to `number` parts with about as many messages each; a part is a few stretches."""
        # The stretch is one step, unless this is after a crash.
        known = self._next.get(start)
        steps = [known] if known and known.end == end else self._steps(start, end)
        messages, stretch = sum(step.messages for step in steps), self._pace.stretch
        parts: dict[int, list[Stretch]] = {}
        seen = 0
        for step in self._steps(start, end, max(1, min(stretch, messages // (number * 4)))):
            part = parts.setdefault(min(number - 1, seen * number // max(1, messages)), [])
            joined = bool(part) and part[-1].messages + step.messages <= stretch
            before = part.pop() if joined else Stretch(step.start, step.start)
            part.append(Stretch(before.start, step.end, before.messages + step.messages))
            seen += step.messages
        return list(parts.values())

    def forget(self, done: int) -> None:
        """Forget what is before a place."""
        self._next = {place: step for place, step in self._next.items() if place >= done}
        self._nothing = {place: end for place, end in self._nothing.items() if place >= done}

    def _make(self, here: int, end: LogEnd, max_messages: int | None) -> None:
        start, place = self._nothing.get(here, here), here
        if start >= end.horizon:
            return
        for step in self._ask(start, end.horizon, max_messages):
            self._next[place] = step
            place = step.end
        if place == here:
            self._nothing[here] = end.horizon

    def _steps(self, start: int, end: int, max_messages: int | None = None) -> Iterator[Stretch]:
        """Cut a stretch, however long it is."""
        while start < end and (steps := self._ask(start, end, max_messages)):
            yield from steps
            start = steps[-1].end

    def _ask(self, start: int, end: int, max_messages: int | None) -> list[Stretch]:
        asked = verbs.split_archive_log(start, end, max_messages=max_messages, queue_names=self._queue_names)
        rows = self._session.ask(asked)
        starts = [start, *(row["xid"] for row in rows)]
        return [Stretch(at, row["xid"], row["messages"]) for at, row in zip(starts, rows, strict=False)]
