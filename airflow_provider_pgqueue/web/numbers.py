"""What the pages show of all queues, found once for all viewers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import Statement, run
from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import translate
from airflow_provider_pgqueue.core.message import Finding, QueueStatus, Row
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.web.site import Site

T = TypeVar("T")
SECONDS: Final = 4.0  # the pages ask every five
_LATE: Final = timedelta(days=1)  # as health() has it
_SLOW: Final = 30.0


@dataclass(frozen=True, slots=True)
class Overview:
    """All queues at one moment."""

    at: datetime
    queues: list[QueueStatus]
    findings: list[Finding] = field(default_factory=list)


def ask(site: Site, statement: Statement[T]) -> T:
    """Run a verb on a connection of its own."""
    with site.connect() as conn:
        check_version(conn)
        return run(conn, statement)


def rows_of(conn: psycopg.Connection[Any], name: str, **arguments: Any) -> list[Row]:
    """Return the rows of a query of sql/queries."""
    try:
        with conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query(name), arguments).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error


def overview(site: Site) -> Overview:
    """Return all queues and what health() found, at most some seconds old."""
    findings = site.shared.get("health", _SLOW, lambda: ask(site, verbs.health()))

    def find() -> Overview:
        return Overview(datetime.now(UTC), ask(site, verbs.status()), [one for one in findings if one.severity != "ok"])

    return site.shared.get("overview", SECONDS, find)


def needs(queue: QueueStatus) -> list[str]:
    """Return why somebody should look at a queue, most pressing first; health() warns at the same bounds."""
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
    "name": lambda queue: queue.queue_name,
    "depth": lambda queue: queue.depth,
    "ready": lambda queue: queue.ready,
    "leased": lambda queue: queue.leased,
    "delayed": lambda queue: queue.delayed,
    "age": _age,
    "dead": lambda queue: queue.dead,
    "attention": lambda queue: ([why in needs(queue) for why in ("late", "dead", "paused")], _age(queue)),
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


def rates(site: Site, names: Sequence[str]) -> dict[str, Rate]:
    """Return what was published and finished in the last hour, for the queues that one page shows."""
    return {}


@dataclass(frozen=True, slots=True)
class Rate:
    """The last hour of a queue, in steps."""

    arrivals: list[int]
    completions: list[int]
