"""Why messages died, and whether it gets worse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.sparkline import sparkline
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_SHOWN = ("queue_name", "result", "cause", "died", "waiting", "trend", "last_at", "deaths", "pattern")


@click.command()
@click.argument("queue", required=False)
@click.option("--since", type=duration, default="1d", show_default=True, help="How far to look back.")
@click.option("--step", type=duration, default="1h", show_default=True, help="Length of a step of the series.")
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many causes to show."
)
@shared_options
@pass_settings
def causes(settings: Settings, queue: str | None, since: timedelta, step: timedelta, number: int) -> None:
    """Show the causes of death of messages, how many died in each step of time, and the trend.

    The numbers are those that the upkeep noted. `waiting` counts the messages that are without a remedy now. Requeue or
    dismiss the messages of a cause with `pgqueue requeue --cause` and `pgqueue dismiss --cause`.
    """
    try:
        begin = datetime.now(UTC) - since
    except OverflowError:
        raise click.BadParameter("is too long.", param_hint="--since") from None
    with connected(settings) as conn:
        if queue is not None:
            run(conn, verbs.status(queue))  # an unknown queue is an error
        found = run(conn, verbs.dead_trend(queue, since=begin, step=step, max_causes=number))
    rows = [{**row, "cause": row["fingerprint"]} for row in found]
    if not settings.as_json:
        rows = [{**row, "deaths": sparkline(row["series"][-30:])} for row in rows]
    show_rows(settings, "causes", rows, _SHOWN)
