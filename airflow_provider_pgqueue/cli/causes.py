"""Why messages died: those that are dead now, and whether more die of it."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from airflow_provider_pgqueue.cli.connection import ask, connected
from airflow_provider_pgqueue.cli.options import ago, duration, number_option
from airflow_provider_pgqueue.cli.output import records, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import say, sparkline
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity

_MOST = 100
_CAUSE = ("queue_name", "result", "fingerprint", "waiting", "first_at", "last_at", "newest_id", "example")
_SHOWN = ("queue_name", "result", "cause", "died", "waiting", "trend", "last_at", "deaths", "pattern")


@click.command()
@click.argument("queue", required=False)
@click.option("--since", type=ago, metavar="DURATION", default="1d", show_default=True, help="How far to look back.")
@click.option("--step", type=duration, default="1h", show_default=True, help="Length of a step of the series.")
@number_option("causes", most=1000)
@with_settings
def causes(settings: Settings, queue: str | None, since: datetime, step: timedelta, number: int) -> None:
    """Show the causes of death of messages, how many died in each step of time, and the trend.

    The numbers are those that the upkeep recorded. `waiting` counts the messages that are without a remedy now. Causes
    with the result `retried` are those of messages that have failed and wait for another attempt.
    Requeue or dismiss the messages of a cause with `pgqueue requeue --cause` and `pgqueue dismiss --cause`.
    """
    with connected(settings) as conn:
        found = run(conn, verbs.dead_trend(queue, since=since, step=step, max_causes=number))
        retried = run(conn, verbs.retried_causes(queue, since=since, max_causes=number))
    rows = [{**row, "cause": row["fingerprint"]} for row in found]
    rows += [
        {**dict.fromkeys(rows[0] if rows else _SHOWN), **row, "result": "retried", "series": [], "died": 0}
        | {"cause": row["fingerprint"], "pattern": row["example"]}
        for row in retried
    ]
    if not settings.as_json:
        rows = [{**row, "deaths": sparkline(row["series"][-30:])} for row in rows]
    show_rows(settings, "causes", rows, _SHOWN)
    if not found and not settings.as_json:
        say("`pgqueue dead` also counts what died since the last upkeep, or earlier.")


@click.command()
@click.argument("queue", required=False)
@with_settings
def dead(settings: Settings, queue: str | None) -> None:
    """Count dead messages by cause.

    A message is dead if it was archived with any result but success and cancelled. Those that were requeued or
    dismissed are left out. Each cause comes with an example; the hundred most frequent are shown. `pgqueue requeue
    --cause` and `pgqueue dismiss --cause` take its fingerprint.
    """
    causes = ask(settings, verbs.dead_causes(queue))
    shown = causes if settings.as_json else causes[:_MOST]
    show_rows(settings, "causes", records(shown), _CAUSE)
    if len(shown) < len(causes):
        say(f"… and {quantity(len(causes) - len(shown), 'more cause')}: --json has them all")
