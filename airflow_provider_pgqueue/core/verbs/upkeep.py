"""The upkeep, and who does it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_provider_pgqueue.core.client import Statement, one, only_row


def sweep_queues(
    queue_name: str | None = None,
    priority: int | None = None,
    above: datetime | None = None,
    below: datetime | None = None,
    lowest: datetime | None = None,
) -> Statement[dict[str, Any]]:
    """End at most 5,000 expired leases; return `freed`, `archived`, and the arguments of the next call.

    Their `queue_name` is None when nothing is left. Each call belongs in a transaction of its own, as in
    `core.upkeep.do_upkeep`.
    """
    return Statement("sweep_queues", dict(locals()), only_row)


def upkeep() -> Statement[dict[str, Any]]:
    """Do one round of the upkeep: archive what expired, ring again for what waits, create partitions; return counts."""
    return Statement("upkeep", {}, one)


def upkeep_mode() -> Statement[str]:
    """Return what does the upkeep: `pg_cron` or `airflow`."""
    return Statement("upkeep_mode", {}, one)


def install_cron(run_as: str | None = None) -> Statement[str]:
    """Let pg_cron do the upkeep as the login `run_as`, and return the name of the job.

    A superuser has to name one, which is made if it is missing. CronUnavailable says what is missing.
    """
    return Statement("install_cron", {"run_as": run_as}, one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs, and return their number."""
    return Statement("uninstall_cron", {}, one)
