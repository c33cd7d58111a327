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


def install_cron(run_as: str | None = None) -> Statement[str]:
    """Let pg_cron run maintenance as the login `run_as`, and return the name of the job.

    A superuser has to name a login, which is created if it is missing. CronUnavailable says what is missing.
    """
    return Statement("install_cron", {"run_as": run_as}, one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs, and return their number."""
    return Statement("uninstall_cron", {}, one)
