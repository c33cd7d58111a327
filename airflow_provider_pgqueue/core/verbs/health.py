"""What may go wrong."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_pgqueue.core.client import Statement, list_of
from airflow_provider_pgqueue.core.message import Finding


def health(*, held_for: timedelta | None = None, waiting_for: timedelta | None = None) -> Statement[list[Finding]]:
    """Check everything that may go wrong, and return a finding for each check, with SQL that cures it. Only reads.

    `held_for` is how long a transaction may hold its snapshot before the finding is a warning (default 5 minutes;
    critical at twelve times that). `waiting_for` is how long a ready or dead message may wait (default 1 day).
    """
    return Statement("health", dict(locals()), list_of(Finding))
