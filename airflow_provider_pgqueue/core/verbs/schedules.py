"""Messages at the ticks of a cron expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Schedule
from airflow_provider_pgqueue.core.statement import Statement, list_of, nothing, one


def schedule(
    schedule_name: str,
    cron: str,
    queue_name: str,
    body: Any,
    *,
    time_zone: str = "UTC",
    priority: int = 4,
    headers: Mapping[str, Any] | None = None,
    paused: bool | None = None,
) -> Statement[bool]:
    """Publish a message at each tick of a cron expression from now on; return whether the schedule is new.

    One that exists is changed to what is given here. With `paused=None` it stays paused or not, as it was.
    """
    arguments = dict(locals())
    arguments["message"] = to_json(arguments.pop("body"))
    return Statement("schedule", arguments, one)


def unschedule(schedule_name: str) -> Statement[None]:
    """End a schedule; what it published stays."""
    return Statement("unschedule", locals(), nothing)


def pause_schedule(schedule_name: str) -> Statement[None]:
    """Stop a schedule until it is resumed; no effect on one that is paused."""
    return Statement("pause_schedule", locals(), nothing)


def resume_schedule(schedule_name: str) -> Statement[None]:
    """Resume a paused schedule from its next tick on; missed ticks are not published."""
    return Statement("resume_schedule", locals(), nothing)


def schedules() -> Statement[list[Schedule]]:
    """List the schedules, without their bodies, with the next tick of each."""
    return Statement("schedules", {}, list_of(Schedule))


def run_schedules() -> Statement[int]:
    """Publish what is due, and return how many messages. Safe to run at the same time: each tick is published once."""
    return Statement("run_schedules", {}, one)
