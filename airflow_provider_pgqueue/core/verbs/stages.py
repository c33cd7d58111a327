"""Publishing what many tasks staged, all or none of it."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_pgqueue.core.statement import Statement, one

_TYPES: Final = {"dedup_window": "interval"}  # which is a text here


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
