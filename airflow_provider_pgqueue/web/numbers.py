"""What the pages show of all queues, found once for all viewers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import Statement, run
from airflow_provider_pgqueue.core.message import Finding, QueueStatus, Row
from airflow_provider_pgqueue.web.request import Site

T = TypeVar("T")
SECONDS: Final = 4.0  # the pages ask every five
_LATE: Final = timedelta(days=1)  # as health() has it
_SLOW: Final = 30.0
_STEP: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Overview:
    """All queues at one point in time."""

    at: datetime
    queues: list[QueueStatus]
    findings: list[Finding] = field(default_factory=list)


def ask(site: Site, statement: Statement[T]) -> T:
    """Run a verb on a connection of its own."""
    with site.reading() as conn:
        return run(conn, statement)


def overview(site: Site) -> Overview:
    """Return all queues and what health() found, at most some seconds old."""
    findings = site.shared.get("health", _SLOW, lambda: ask(site, verbs.health()))

    def find() -> Overview:
        pressing = sorted((one for one in findings if one.severity != "ok"), key=lambda one: one.severity)
        return Overview(datetime.now(UTC), ask(site, verbs.status()), pressing)

    return site.shared.get("overview", SECONDS, find)


def is_behind(known_until: datetime) -> bool:
    """Whether the history, which the upkeep records each minute, should be known for longer than this."""
    return datetime.now(UTC) - known_until > timedelta(minutes=5)


def needs(queue: QueueStatus) -> list[str]:
    """Return why somebody should look at a queue, most pressing first; health() warns at the same bounds."""
    found = []
    if queue.broken_since:
        found.append("broken")
    if queue.oldest_age is not None and queue.oldest_age > _LATE:
        found.append("late")
    if queue.dead:
        found.append("dead")
    if queue.paused:
        found.append("paused")
    return found


def _age(queue: QueueStatus) -> timedelta:
    return queue.oldest_age or timedelta(-1)


_KEYS: Final[dict[str, Callable[[QueueStatus], Any]]] = {
    "name": lambda queue: queue.queue_name,
    "depth": lambda queue: queue.depth,
    "ready": lambda queue: queue.ready,
    "leased": lambda queue: queue.leased,
    "delayed": lambda queue: queue.delayed,
    "age": _age,
    "dead": lambda queue: queue.dead,
    "attention": lambda queue: ([why in needs(queue) for why in ("broken", "late", "dead", "paused")], _age(queue)),
}
ORDERS: Final = ("-attention", *(f"{sign}{key}" for key in _KEYS for sign in ("", "-") if key != "attention"))


def sorted_by(queues: Sequence[QueueStatus], order: str) -> list[QueueStatus]:
    """Return the queues in an order of ORDERS, by name where it does not say."""
    by_name = sorted(queues, key=_KEYS["name"])
    return sorted(by_name, key=_KEYS[order.lstrip("-")], reverse=order.startswith("-"))


def matching(queues: Collection[QueueStatus], words: str) -> list[QueueStatus]:
    """Return the queues whose name has every word."""
    wanted = words.lower().split()
    return [queue for queue in queues if all(word in queue.queue_name for word in wanted)]


def sparks(site: Site, names: Sequence[str]) -> dict[str, Spark]:
    """Return what was published and archived in the last hour, for the queues that one page shows."""

    def find() -> dict[str, Spark]:
        since = datetime.now(UTC) - timedelta(hours=1)
        rows = ask(site, verbs.queue_sparklines(names, since=since, step=_STEP))
        return {row["queue_name"]: Spark.from_row(row) for row in rows}

    return site.shared.get(("sparks", *names), 15.0, find) if names else {}


@dataclass(frozen=True, slots=True)
class Spark:
    """The last hour of a queue, in steps."""

    arrivals: list[int | None]
    completions: list[int | None]
    known: bool
    unknown_since: datetime | None

    @property
    def arrived(self) -> int:
        """How many messages were published, as far as it is known."""
        return sum(one or 0 for one in self.arrivals)

    @property
    def completed(self) -> int:
        """How many messages were archived, as far as it is known."""
        return sum(one or 0 for one in self.completions)

    @classmethod
    def from_row(cls, row: Row) -> Spark:
        """Read a row of queue_sparklines, where a step that was not recorded is None."""
        known = [row["first_at"] + (n + 1) * _STEP for n, one in enumerate(row["arrivals"]) if one is not None]
        return cls(
            row["arrivals"],
            [None if good is None else good + dead for good, dead in zip(row["success"], row["dead"], strict=True)],
            bool(known),
            known[-1] if known and is_behind(known[-1]) else None,
        )
