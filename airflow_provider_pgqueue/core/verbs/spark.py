"""Runs of pipelines, each of which is done once, and what their tasks publish, all or none of it."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, one, only_row

_TYPES: Final = {"dedup_window": "interval"}  # which is a text here


def begin_run(run_id: str, pipeline: str) -> Statement[dict[str, Any] | None]:
    """Record that a run starts; return its summary if it finished before, else None."""
    return Statement("begin_run", locals(), one)


def finish_run(run_id: str, summary: str) -> Statement[dict[str, Any]]:
    """Record that a run is done, with its summary as JSON text, and return the summary that is kept: the first."""
    return Statement("finish_run", locals(), one)


def run_summary(run_id: str, pipeline: str) -> Statement[dict[str, Any] | None]:
    """Return the summary of a run, or None if it has not finished or never began."""
    return Statement("run_summary", locals(), one)


def run_holder(run_id: str) -> Statement[str]:
    """Return how `locked_by` and `handled_by` begin for what this login's run leases."""
    return Statement("run_holder", locals(), one)


def run_backlog(holder: str, queue_name: str) -> Statement[Row]:
    """Count what is left for a run: `ready`, `held` by its own leases, `waiting` (delayed, or held by others)."""
    return Statement("run_backlog", locals(), only_row)


def run_archived(run_id: str) -> Statement[Row]:
    """Return how many messages a run has archived by result, how many `seconds` ago it began and how many it `worked`.

    It works from its first lease to its last result.
    """
    return Statement("run_archived", locals(), only_row)


def stage_publish(stage_id: str, *, queue_name: str | None = None, run_id: str | None = None) -> Statement[str | None]:
    """Create the staging table of a job unless it exists, and return its name; None if the run was published before."""
    return Statement("stage_publish", locals(), one)


def publish_staged(
    stage_id: str,
    run_id: str,
    winners: str,
    *,
    queue_name: str | None = None,
    dedup_window: str | None = None,
    batch: int | None = None,
) -> Statement[dict[str, Any]]:
    """Publish the staged rows of the attempts that succeeded, and return how many.

    `winners` is a JSON array of objects with `partition`, `attempt` and `rows`. A run or batch that was published
    before publishes nothing, and returns its old numbers with `repeated`. Raises InvalidArgument if that was to another
    queue; StageIncomplete if rows are gone: nothing is published.
    """
    return Statement("publish_staged", locals(), one, _TYPES)


def drop_stage(stage_id: str) -> Statement[bool]:
    """Drop the staging table of a job that will not publish; False if that is left to maintenance."""
    return Statement("drop_stage", locals(), one)
