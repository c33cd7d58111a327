"""Counts dead messages by cause."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import ask
from airflow_provider_pgqueue.cli.output import records, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import print_text
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.quantity import quantity

_MOST = 100
_CAUSE = ("queue_name", "result", "cause", "waiting", "first_at", "last_at", "newest_id", "example")


@click.command()
@click.argument("queue", required=False)
@with_settings
def dead(settings: Settings, queue: str | None) -> None:
    """Count dead messages by cause.

    A message is dead if it was archived with any result but success and cancelled. Those that were requeued or
    dismissed are left out. Each cause comes with an example; the hundred most frequent are shown. `pgqueue requeue
    --cause` and `pgqueue dismiss --cause` take what stands under cause, which is fingerprint in JSON and SQL.
    """
    causes = ask(settings, verbs.dead_causes(queue))
    shown = causes if settings.as_json else causes[:_MOST]
    rows = records(shown)
    if not rows and not settings.as_json:
        print_text("no dead messages")
        return
    # In JSON it has the name that it has in SQL.
    show_rows(
        settings, "causes", rows if settings.as_json else [{**row, "cause": row["fingerprint"]} for row in rows], _CAUSE
    )
    if len(shown) < len(causes):
        print_text(f"… and {quantity(len(causes) - len(shown), 'more cause')}: --json has them all")
