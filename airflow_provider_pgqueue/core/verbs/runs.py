"""Runs of the pipelines: each is done once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow_provider_pgqueue.core.client import Statement, nothing, one, only_row
from airflow_provider_pgqueue.core.message import Row


def begin_run(run_id: str, pipeline: str) -> Statement[dict[str, Any] | None]:
    """Note that a run starts; its summary if it finished before, else None."""
    return Statement("begin_run", dict(locals()), one)


def finish_run(run_id: str, summary: str) -> Statement[dict[str, Any]]:
    """Note that a run is done, with its summary as JSON text; of two at once the summary of the first."""
    return Statement("finish_run", dict(locals()), one, {"summary": "jsonb"})


def run_summary(run_id: str, pipeline: str) -> Statement[dict[str, Any] | None]:
    """Ask for the summary of a run; None until it finished, and if it never began."""
    return Statement("run_summary", dict(locals()), one)


def run_backlog(holder: str, queue_name: str, *, topic: str | None = None) -> Statement[Row]:
    """Count what is left for a run: `ready` to lease, `held` by its leases, `waiting` for a moment or for others."""
    return Statement("run_backlog", dict(locals()), only_row)


def run_archived(run_id: str) -> Statement[Row]:
    """Count what a run archived since it began, by result, and for how many `seconds` it has been going."""
    return Statement("run_archived", dict(locals()), only_row)


def check_queues_exist(queue_names: Collection[str]) -> Statement[None]:
    """Raise QueueNotFound for the first of these names that no queue has."""
    return Statement("check_queues_exist", {"queue_names": list(queue_names)}, nothing)


def replay(run_id: str, queue_name: str, rows: str, *, priority: int = 0) -> Statement[int]:
    """Publish copies of messages, a JSON text of rows with their `id`, each id once a run and queue; how many.

    Without rows it only checks that there is such a queue.
    """
    return Statement("replay", dict(locals()), one, {"rows": "jsonb"})
