"""Who works."""

from __future__ import annotations

from datetime import timedelta

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_SHOWN = (
    *("worker", "queue_name", "leased", "leased_since", "lease_ends_at", "finished", "dead"),
    *("finished_rate", "run_avg", "last_at"),
)


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--window", type=duration, default="5m", show_default=True, help="Time over which finished messages are counted."
)
@shared_options
@pass_settings
def workers(settings: Settings, queue: str | None, window: timedelta) -> None:
    """Show who leases messages now, for how long, and how fast each works.

    Workers are shown by the names that they gave themselves, including those that hold nothing now but finished
    something recently.
    """
    with connected(settings) as conn:
        found = run(conn, verbs.workers(queue, period=window))
    rows = [{"finished_rate" if name == "per_second" else name: value for name, value in row.items()} for row in found]
    show_rows(settings, "workers", rows, _SHOWN)
