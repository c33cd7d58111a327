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
    """Do one round of the upkeep, which pg_cron or Airflow does every minute.

    It ends expired leases, archives expired messages, notifies consumers of waiting ones and makes partitions of the
    archive. Running it at the same time as another upkeep does no harm.

    Of the counts, freed is how many expired leases it ended, archived how many messages had expired or were out of
    attempts, rung for how many messages it notified consumers again, and groups_repaired in how many groups it made the
    next message ready because none was.
    """
    with connected(settings) as conn:
        counts = run(conn, verbs.upkeep())
    show(settings, counts, "did the upkeep: " + ", ".join(f"{key} {value}" for key, value in counts.items()) + ".")
