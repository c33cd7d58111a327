"""The upkeep, and who does it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgqueue.core.client import Statement, one


def upkeep() -> Statement[dict[str, Any]]:
    """Archive what expired, ring for what waits, make partitions; counts of each."""
    return Statement("upkeep", {}, one)


def upkeep_mode() -> Statement[str]:
    """Say who does the upkeep: `pg_cron` or `airflow`."""
    return Statement("upkeep_mode", {}, one)


def install_cron() -> Statement[str]:
    """Schedule the upkeep through pg_cron; the name of the job. CronUnavailable says what is missing."""
    return Statement("install_cron", {}, one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs of the queue; how many there were."""
    return Statement("uninstall_cron", {}, one)
