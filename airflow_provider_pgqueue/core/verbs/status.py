"""What queues hold, and which of them have messages to lease."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import ClosedQueue, QueueStatus, ReadyQueue, Row
from airflow_provider_pgqueue.core.statement import Statement, list_of


def status(queue_name: str | None = None, *, exact: bool = False) -> Statement[list[QueueStatus]]:
    """Return the numbers of each queue, or of one, within milliseconds however long the queues are.

    Counts up to 10,000 messages of a queue, and says in `counted_up_to` how far. With `exact` it counts every message,
    which takes seconds where millions wait.
    """
    return Statement("status", locals(), list_of(QueueStatus))


def ready_queues(queue_names: Collection[str] | None = None, *, count_up_to: int = 1000) -> Statement[list[ReadyQueue]]:
    """Return the queues that have a message to lease now or later, in one query for any number of queues."""
    return Statement("ready_queues", locals(), list_of(ReadyQueue))


def closed_queues(queue_names: Collection[str]) -> Statement[list[ClosedQueue]]:
    """Return those of the queues that no consumer should wait for: paused ones, and ones unknown to the session."""
    return Statement("closed_queues", locals(), list_of(ClosedQueue))


def metrics(
    max_queues: int = 200, *, queue_names: Collection[str] | None = None, names: Collection[str] | None = None
) -> Statement[list[Row]]:
    """Return the metrics as Prometheus names them, one row for each series; with `names` only those.

    The named queues, or the oldest `max_queues`, have series of their own; all others are summed up as `other`.
    """
    return Statement("metrics", locals(), list)


def workers(queue_name: str | None = None, *, period: Duration | None = None) -> Statement[list[Row]]:
    """Return who leases now or finished something within `period`, those with most leases first."""
    return Statement("workers", locals(), _workers)


def _workers(rows: list[Row]) -> list[Row]:
    return [{"queue_name": row.pop("worker_queue"), **row} for row in rows]
