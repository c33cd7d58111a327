"""Why messages failed, counted by cause."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import DeadCause, Row
from airflow_provider_pgqueue.core.statement import Statement


def dead_causes(queue_name: str | None = None) -> Statement[list[DeadCause]]:
    """Return the causes of open dead messages, most frequent first."""
    return Statement("dead_causes", locals(), _causes)


def dead_trend(
    queue_name: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step: Duration | None = None,
    max_causes: int = 100,
) -> Statement[list[Row]]:
    """Return the causes of death, most deaths first, with the number in each step; by default of the last day."""
    return Statement("dead_trend", locals(), _named)


def retried_causes(
    queue_name: str | None = None, *, since: datetime | None = None, max_causes: int = 100
) -> Statement[list[Row]]:
    """Return why attempts of unfinished messages failed, most messages first; by default in the last day."""
    return Statement("retried_causes", locals(), _named)


def _named(rows: list[Row]) -> list[Row]:
    return [{"queue_name": row.pop("cause_queue"), **row} for row in rows]


def _causes(rows: list[Row]) -> list[DeadCause]:
    return [DeadCause(queue_name=row.pop("cause_queue"), **row) for row in rows]
