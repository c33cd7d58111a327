"""Waiting for work, and what keeps the queue in order."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from airflow_provider_pgqueue.core.message import DeadQueue, Finding, ReadyQueue
from airflow_provider_pgqueue.core.verbs.statement import Statement, list_of, one


def ready_queues(queue_names: Collection[str] | None = None, *, count_up_to: int = 1000) -> Statement[list[ReadyQueue]]:
    """Ask which queues have a message to lease now or later; one question for any number of waiting consumers."""
    arguments = {
        "queue_names": None if queue_names is None else list(queue_names),
        "count_up_to": count_up_to,
    }
    return Statement("ready_queues", arguments, list_of(ReadyQueue.from_row), {"queue_names": "text[]"})


def dead_queues(
    queue_names: Collection[str] | None = None,
) -> Statement[list[DeadQueue]]:
    """Ask which queues have dead messages that nobody decided about and nobody holds."""
    arguments = {"queue_names": None if queue_names is None else list(queue_names)}
    return Statement("dead_queues", arguments, list_of(DeadQueue.from_row), {"queue_names": "text[]"})


def upkeep() -> Statement[dict[str, Any]]:
    """Archive what expired, ring for what waits, make partitions; counts of each."""
    return Statement("upkeep", {}, one)


def health(*, held_for: timedelta | None = None, waiting_for: timedelta | None = None) -> Statement[list[Finding]]:
    """Check everything that may go wrong, a finding for each check, with the SQL that cures it; only reads.

    A transaction may hold its snapshot `held_for` (5 minutes; critical after twelve times as long), a message may wait
    `waiting_for` (1 day), ready or dead.
    """
    return Statement("health", dict(locals()), list_of(Finding.from_row))


def upkeep_mode() -> Statement[str]:
    """Say who does the upkeep: `pg_cron` or `airflow`."""
    return Statement("upkeep_mode", {}, one)


def install_cron() -> Statement[str]:
    """Schedule the upkeep through pg_cron; the name of the job. CronUnavailable says what is missing."""
    return Statement("install_cron", {}, one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs of the queue; how many there were."""
    return Statement("uninstall_cron", {}, one)
