"""Lists what publishes by itself."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import records, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_SHOWN = ("schedule_name", "cron", "time_zone", "queue_name", "paused", "last_tick", "next_at", "last_error")


@click.command()
@shared_options
@pass_settings
def schedules(settings: Settings) -> None:
    """List the schedules, which publish messages at set times."""
    with connected(settings) as conn:
        found = run(conn, verbs.schedules())
    show_rows(settings, "schedules", records(found), _SHOWN)
