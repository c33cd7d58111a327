"""What may go wrong."""

from __future__ import annotations

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import Finding
from airflow_provider_pgqueue.core.statement import Statement, list_of


def health(*, held_for: Duration | None = None, waiting_for: Duration | None = None) -> Statement[list[Finding]]:
    """Check everything that may go wrong, and return a finding for each check, with SQL that fixes it. Only reads.

    `held_for` is how long a transaction may hold its snapshot before the finding is a warning (default 5 minutes;
    critical at twelve times that). `waiting_for` is how long a ready or dead message may wait (default 1 day).
    """
    return Statement("health", locals(), list_of(Finding))
