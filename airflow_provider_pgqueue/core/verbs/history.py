"""What maintenance recorded of each queue."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, nothing


def queue_history(
    queue_name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step: Duration | None = None,
) -> Statement[list[Row]]:
    """Return the history of a queue, one row for each step, oldest first; by default the minutes of the last hour.

    Levels are None for times in which maintenance did not run. Percentiles are rounded up by at most 19 percent.
    """
    return Statement("queue_history", locals(), list)


def queue_sparklines(
    queue_names: Collection[str],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step: Duration | None = None,
) -> Statement[list[Row]]:
    """Return the history of up to 500 queues, one row for each, with a number for each step."""
    return Statement("queue_sparklines", locals(), list)


def queue_rates(queue_names: Collection[str] | None = None, *, period: Duration | None = None) -> Statement[list[Row]]:
    """Return what went through each queue in the last whole minutes; divide by `seconds` for rates."""
    return Statement("queue_rates", locals(), list)


def alter_history(
    *,
    minutes_for: Duration | None = None,
    hours_for: Duration | None = None,
    days_for: Duration | None = None,
    audit_for: Duration | None = None,
) -> Statement[None]:
    """Change how long the history and the audit are kept; None keeps a value, zero keeps days or the audit forever."""
    return Statement("alter_history", locals(), nothing)
