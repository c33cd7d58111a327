"""Does the upkeep by hand."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core.upkeep import do_upkeep


@click.command()
@shared_options
@pass_settings
def upkeep(settings: Settings) -> None:
    """Do one round of the upkeep, which pg_cron or Airflow does every minute.

    It ends expired leases, archives expired messages, notifies consumers of waiting ones and makes partitions of the
    archive. Running it at the same time as another upkeep does no harm.

    The counts: freed, expired leases that it ended; archived, messages that had expired or were out of attempts; rung,
    messages for which it notified consumers again; partitions_made and partitions_dropped, of the archive;
    archive_deleted, archived messages whose retention had ended; cron_history_purged, old rows of its jobs in the
    history of pg_cron; history_rows, what it recorded for the history. While another upkeep runs there is only skipped,
    with the reason.
    """
    with connected(settings) as conn:
        counts = do_upkeep(conn)
    show_done(settings, counts, "did the upkeep: " + ", ".join(f"{key} {value}" for key, value in counts.items()) + ".")
