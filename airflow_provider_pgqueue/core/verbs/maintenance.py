"""Maintenance, and what runs it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgqueue.core.statement import Statement, one, only_row


def scan_next(queue_name: str = "") -> Statement[dict[str, Any]]:
    """End what is due, at most 5,000 messages, in the first queue with messages from this name on, and notify again.

    Returns `freed`, `archived`, `notified` and the `queue_name` for the next call, which is None after the last queue.
    Each call belongs in a transaction of its own, as in `core.maintenance.run_maintenance`.
    """
    return Statement("scan_next", locals(), only_row)


def maintain(*, with_queues: bool = True) -> Statement[dict[str, Any]]:
    """Run maintenance once: archive what expired, notify again for what waits, create partitions; return counts.

    Without `with_queues` it leaves out the queues, for callers that called `scan_next` for each queue before.
    """
    return Statement("maintain", locals(), one)


def maintenance_mode() -> Statement[str]:
    """Return what runs maintenance: `pg_cron` or `airflow`."""
    return Statement("maintenance_mode", {}, one)
