"""The jobs of pg_cron, which run maintenance every minute."""

from __future__ import annotations

from airflow_provider_pgqueue.core.statement import Statement, one


def install_cron(run_as: str | None = None) -> Statement[str]:
    """Let pg_cron run maintenance as the login `run_as`, and return the name of the job.

    A superuser has to name a login, which is created if it is missing. CronUnavailable says what is missing.
    """
    return Statement("install_cron", {"run_as": run_as}, one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs, and return their number."""
    return Statement("uninstall_cron", {}, one)
