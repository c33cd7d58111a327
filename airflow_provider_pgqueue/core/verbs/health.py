"""What may go wrong."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_pgqueue.core.client import Statement, list_of
from airflow_provider_pgqueue.core.message import Finding


def health(*, held_for: timedelta | None = None, waiting_for: timedelta | None = None) -> Statement[list[Finding]]:
    """Check everything that may go wrong, a finding for each check, with the SQL that cures it; only reads.

    A transaction may hold its snapshot `held_for` (5 minutes; critical after twelve times as long), a message may wait
    `waiting_for` (1 day), ready or dead.
    """
    return Statement("health", dict(locals()), list_of(Finding))
