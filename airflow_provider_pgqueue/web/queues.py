"""All queues: what needs attention first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.message import Finding, QueueStatus, Row
from airflow_provider_pgqueue.core.quantity import AtLeast, seen
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.web.fields import choices, whole_number
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.request import Site, site_of

T = TypeVar("T")
router = APIRouter()
_PER_PAGE: Final = 50
_LATE: Final = timedelta(days=1)  # as health() has it
_STEP: Final = timedelta(minutes=2)
_SUMS: Final[tuple[Literal["ready", "leased", "delayed", "dead"], ...]] = ("ready", "leased", "delayed", "dead")
_ORDERS: Final = {
    "-attention": "Most pressing first",
    "name": "By name",
    "-depth": "Deepest first",
    "-ready": "Most ready",
    "-leased": "Most leased",
    "-age": "Oldest first",
    "-dead": "Most dead",
}
"""The orders that a list offers; a heading can choose each column in both directions."""


@router.get("/")
def queues(request: Request) -> Response:
    """All queues: searched, sorted, and by pages."""
    site, given = site_of(request), request.query_params
    found = _overview(site)
    chosen = choices(given, _SHOWN)
    words, order = given.get("q", "")[:100], chosen["sort"]
    matching = _matching(found.queues, words)
    listed = _sorted(filter(needs, matching) if chosen["show"] == "attention" else matching, order)
    pages = max(1, -(-len(listed) // _PER_PAGE))
    place = min(whole_number(given.get("page", "1")) or 1, pages)
    shown = listed[(place - 1) * _PER_PAGE : place * _PER_PAGE]
    return page(
        request,
        "queues.html",
        overview=found,
        sums={"queues": len(found.queues), **{name: _sum(found.queues, name) for name in _SUMS}},
        more=any(isinstance(queue.seen(name), AtLeast) for queue in found.queues for name in _SUMS),
        attention=sum(bool(needs(queue)) for queue in found.queues),
        rows=[(queue, needs(queue)) for queue in shown],
        sparks=_sparks(site, [queue.queue_name for queue in shown]),
        chosen={"q": words, **chosen, "page": place},
        orders=_ORDERS if order in _ORDERS else {**_ORDERS, order: f"By {order.lstrip('-')}"},
        pages=pages,
        listed=len(listed),
    )


@dataclass(frozen=True, slots=True)
class Overview:
    """All queues at one point in time, and what health() found of them."""

    at: datetime
    queues: list[QueueStatus]
    findings: list[Finding]


def _overview(site: Site) -> Overview:
    """Return all queues and what health() found, at most some seconds old."""
    findings = site.shared.get("health", lambda: _ask(site, verbs.health()), seconds=30.0)

    def find() -> Overview:
        pressing = sorted((one for one in findings if one.severity != "ok"), key=lambda one: one.severity)
        return Overview(datetime.now(UTC), _ask(site, verbs.status()), pressing)

    return site.shared.get("overview", find)


def _ask(site: Site, statement: Statement[T]) -> T:
    """Run a verb on a connection of its own."""
    with site.reading() as conn:
        return run(conn, statement)


def needs(queue: QueueStatus) -> list[str]:
    """Return why a queue needs attention, most pressing first; health() warns at the same bounds."""
    found = []
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
    "attention": lambda queue: ([why in needs(queue) for why in ("late", "dead", "paused")], _age(queue)),
    "name": lambda queue: queue.queue_name,
    "depth": lambda queue: queue.depth,
    "ready": lambda queue: queue.ready,
    "leased": lambda queue: queue.leased,
    "delayed": lambda queue: queue.delayed,
    "age": _age,
    "dead": lambda queue: queue.dead,
}
_SHOWN: Final = {
    "sort": ("-attention", *(f"{sign}{key}" for key in _KEYS for sign in ("", "-") if key != "attention")),
    "show": ("all", "attention"),
}


def _sorted(queues: Iterable[QueueStatus], order: str) -> list[QueueStatus]:
    """Return the queues in an order, by name where it does not say."""
    by_name = sorted(queues, key=_KEYS["name"])
    return sorted(by_name, key=_KEYS[order.lstrip("-")], reverse=order.startswith("-"))


def _matching(queues: Iterable[QueueStatus], words: str) -> list[QueueStatus]:
    """Return the queues whose name has every word."""
    wanted = words.lower().split()
    return [queue for queue in queues if all(word in queue.queue_name for word in wanted)]


def _sum(queues: Sequence[QueueStatus], name: Literal["ready", "leased", "delayed", "dead"]) -> int:
    """Return the sum of what was counted, which people see with a plus where there are more."""
    numbers = [queue.seen(name) for queue in queues]
    counted = sum(number.counted if isinstance(number, AtLeast) else number for number in numbers)
    return seen(sum(numbers), sum(numbers), counted)


def is_behind(known_until: datetime) -> bool:
    """Whether the history, which maintenance records each minute, is older than it should be."""
    return datetime.now(UTC) - known_until > timedelta(minutes=5)


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


def _sparks(site: Site, names: Sequence[str]) -> dict[str, Spark]:
    """Return what was published and archived in the last hour, for the queues that one page shows."""

    def find() -> dict[str, Spark]:
        since = datetime.now(UTC) - timedelta(hours=1)
        rows = _ask(site, verbs.queue_sparklines(names, since=since, step=_STEP))
        return {row["queue_name"]: Spark.from_row(row) for row in rows}

    return site.shared.get(("sparks", *names), find, seconds=15.0) if names else {}
