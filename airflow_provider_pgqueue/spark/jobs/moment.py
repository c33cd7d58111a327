"""Moments: of the database, whose clock is the only one, and on the command line."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import click

from airflow_provider_pgqueue.spark.database import Database


def moment(text: str) -> datetime:
    """Convert an option such as `2026-01-31T08:00Z`; click names it `MOMENT` in the help."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(f"{text!r} is not a moment with its zone. Write 2026-01-31T08:00Z or …+01:00.")
    return found


def now(database: Database) -> datetime:
    """Return what the database says the time is."""
    with database.connect("pgqueue pipeline") as conn:
        ((moment,),) = conn.execute("SELECT clock_timestamp()").fetchall()
    return cast("datetime", moment)
