"""The upkeep, and who does it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgqueue.core.statement import Statement, one, only_row


def look_at_next(queue_name: str = "") -> Statement[dict[str, Any]]:
    """End what is due in the first queue from this name on that has messages, 5,000 of them at most.

    Returns `freed`, `archived` and the `queue_name` for the next call, which is None after the last. Each call belongs
    in a transaction of its own, as in `core.upkeep.do_upkeep`.
    """
    return Statement("look_at_next", locals(), only_row)


def upkeep(*, with_queues: bool = True) -> Statement[dict[str, Any]]:
    """Do one round of the upkeep: archive what expired, ring again for what waits, create partitions; return counts.

    Without `with_queues` it leaves out the queues, which `look_at_next` went through before.
    """
    return Statement("upkeep", locals(), one)


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
