"""What was counted: traffic by the minute, hour and day, and causes of death."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_pgqueue.core.client import Statement, one
from airflow_provider_pgqueue.core.message import Row


def traffic_report(
    queue_name: str | None = None,
    *,
    grain: str = "hour",
    first_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Statement[list[Row]]:
    """Return the traffic of one queue or of all per `minute`, `hour` or `day`, as the last roll-ups counted it."""
    return Statement("traffic_report", dict(locals()), list)


def traffic_windows(
    *,
    first_at: datetime | None = None,
    end_at: datetime | None = None,
    margin: timedelta | None = None,
    settle: timedelta | None = None,
) -> Statement[dict[str, tuple[datetime, datetime]]]:
    """Return from when to when each grain is to be counted. BeforeArchive for a time that is not kept."""
    return Statement("traffic_windows", dict(locals()), _windows)


def _windows(rows: list[Row]) -> dict[str, tuple[datetime, datetime]]:
    return {row["grain"]: (row["grain_first_at"], row["grain_end_at"]) for row in rows}


def record_traffic(run_id: str, rows: str) -> Statement[int]:
    """Record counted buckets (JSON text), and return how many were new or grew. Repeating it changes nothing."""
    return Statement("record_traffic", dict(locals()), one, {"rows": "jsonb"})


def record_triage_causes(run_id: str, causes: str) -> Statement[int]:
    """Record the causes of death that a triage found (JSON text), and return their number."""
    return Statement("record_triage_causes", dict(locals()), one, {"causes": "jsonb"})


def triage_causes(
    queue_name: str | None = None, *, cause: str | None = None, run_id: str | None = None
) -> Statement[list[Row]]:
    """Read the causes of death that the last triage found, or the one named; most messages to remedy first."""
    return Statement("triage_causes", dict(locals()), list)
