"""Lists what publishes by itself."""

from __future__ import annotations

import click
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options


@click.command()
@shared_options
@pass_settings
def schedules(settings: Settings) -> None:
    """List the schedules that publish by themselves."""
    with connected(settings) as conn, conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM messages.schedules()").fetchall()
    show_rows(settings, "schedules", rows)
