"""Publishing what many tasks have staged, all or none of it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgqueue.core.client import Statement, one


def stage_publish(stage_id: str, *, queue_name: str | None = None, run_id: str | None = None) -> Statement[str | None]:
    """Make or find the staging table of a job; its name, or None if the run was published before."""
    return Statement("stage_publish", dict(locals()), one)


def publish_staged(
    stage_id: str,
    run_id: str,
    winners: str,
    *,
    queue_name: str | None = None,
    dedup_window: str | None = None,
    batch: int | None = None,
) -> Statement[dict[str, Any]]:
    """Publish the attempts that won, a JSON text of `partition`, `attempt` and `rows`; how many.

    The same run or batch again publishes nothing and gives the old numbers with `repeated`. Raises StageIncomplete if
    rows are gone: then nothing was published.
    """
    return Statement("publish_staged", dict(locals()), one, {"winners": "jsonb", "dedup_window": "interval"})


def drop_stage(stage_id: str) -> Statement[bool]:
    """Drop the staging table of a job that will not publish; True if it is gone, else the upkeep drops it."""
    return Statement("drop_stage", dict(locals()), one)
