"""What goes through the queues, in numbers, for Airflow's own metrics: statsd, or OpenTelemetry.

A metric is about a queue, which is a tag, and never about a message. Where Airflow has no metrics switched on, this
costs some function calls per batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from airflow.providers.common.compat.sdk import Stats

from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import Dispatch, QueueStatus

T = TypeVar("T")
_PREFIX: Final = "pgqueue"
_IN_DOORBELLS: Final = {"ready": "ready", "waiting": "dead", "oldest_age": "oldest_age"}


class ConsumerMetrics:
    """Counts what a consumer leases, how its messages end, and how long they waited and its handler takes.

    Its methods are for the hooks of `Consumer.drain`.
    """

    def __init__(self, queue_name: str) -> None:
        self._queue = {"queue": queue_name}
        self._seen: Counter[str] = Counter()

    def note_lease(self, lease: Lease) -> None:
        """Count the messages of a lease, and time how long the one that waited longest waited."""
        oldest = min(message.created_at for message in lease.messages)
        _count("leased", len(lease.messages), self._queue)
        _time("waited", datetime.now(UTC) - oldest, self._queue)

    def note_batch(self, counts: Mapping[str, int]) -> None:
        """Count how the messages of the last batch ended; `counts` are the sums so far."""
        for result, number in (Counter(counts) - self._seen).items():
            # In the name too: plain statsd has no tags.
            _count("lease_lost" if result == "lost" else f"handled.{result}", number, self._queue)
        self._seen = Counter(counts)

    def timed(self, handle: Callable[..., T]) -> Callable[..., T]:
        """Return the handler so that each call is timed."""

        def call(*args: Any) -> T:
            began_at = time.monotonic()
            try:
                return handle(*args)
            finally:
                _time("handler", timedelta(seconds=time.monotonic() - began_at), self._queue)

        return call


def note_published(queue_name: str, number: int) -> None:
    """Count messages that were published."""
    if number:
        _count("published", number, {"queue": queue_name})


def note_remedies(queue_name: str | None, summary: Mapping[str, Any]) -> None:
    """Count what became of dead messages."""
    for name in ("requeued", "dismissed"):
        if summary[name] and not summary["dry_run"]:
            _count(name, summary[name], {"queue": queue_name or "all"})


def note_doorbell(doorbell: Mapping[str, Any]) -> None:
    """Show what a doorbell says: how many are ready or dead, and the age of the oldest in seconds."""
    for key, name in _IN_DOORBELLS.items():
        if key in doorbell:
            name = "dead_oldest_age" if name == "oldest_age" and "waiting" in doorbell else name
            _show(name, doorbell[key], {"queue": doorbell["queue_name"]})


def note_dispatches(queue_name: str, dag_id: str, open_: list[Dispatch]) -> None:
    """Show how many dispatches of a queue to a DAG are open."""
    _show("dispatches_open", len(open_), {"queue": queue_name, "dag_id": dag_id})


def note_status(queues: list[QueueStatus]) -> None:
    """Show the numbers of queues."""
    for queue in queues:
        tags = {"queue": queue.queue_name}
        for name in ("ready", "leased", "delayed", "dead"):
            _show("leased_now" if name == "leased" else name, getattr(queue, name), tags)
        _show("oldest_age", queue.oldest_age.total_seconds() if queue.oldest_age else 0, tags)


def _count(name: str, number: int, tags: dict[str, str]) -> None:
    Stats.incr(f"{_PREFIX}.{name}", number, tags=tags)


def _time(name: str, duration: timedelta, tags: dict[str, str]) -> None:
    Stats.timing(f"{_PREFIX}.{name}", duration, tags=tags)


def _show(name: str, value: float, tags: dict[str, str]) -> None:
    Stats.gauge(f"{_PREFIX}.{name}", value, tags=tags)
