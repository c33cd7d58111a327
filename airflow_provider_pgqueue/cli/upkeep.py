"""Does the upkeep by hand."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import show
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


@click.command()
@shared_options
@pass_settings
def upkeep(settings: Settings) -> None:
    """Do the upkeep once, as pg_cron does every minute.

    Archives what expired, rings for what waits, makes partitions. Any number may run at once.
    """
    with connected(settings) as conn:
        counts = run(conn, verbs.upkeep())
    show(settings, counts, "did the upkeep: " + ", ".join(f"{key} {value}" for key, value in counts.items()) + ".")
