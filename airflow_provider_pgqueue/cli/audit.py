"""What was done to the queues by hand, and by whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import before, duration
from airflow_provider_pgqueue.cli.output import show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_SHOWN = ("at", "user", "login", "action", "queue", "affected", "arguments")


@click.command()
@click.argument("queue", required=False)
@click.option("--user", help="Only what this user did, or the login of this name.")
@click.option("--action", help="Only this verb, such as purge_queue.")
@click.option("--since", type=duration, help="Only what was done within this time: 2h, 1d.")
@click.option("--until", type=duration, help="Only what was done longer ago than this.")
@click.option(
    "-n", "--number", type=click.IntRange(1, 10000), default=20, show_default=True, help="How many entries to show."
)
@shared_options
@pass_settings
def audit(
    settings: Settings,
    queue: str | None,
    user: str | None,
    action: str | None,
    since: timedelta | None,
    until: timedelta | None,
    number: int,
) -> None:
    """Show what was done to the queues by hand, and by whom, newest first.

    QUEUE may be one that was dropped since. The user is whoever a web page acted for; the login is the one that did it.
    """
    now = datetime.now(UTC)
    statement = verbs.audit_log(
        queue, since=before(now, since), until=before(now, until), max_entries=number, by_user=user, verb=action
    )
    with connected(settings) as conn:
        found = run(conn, statement)
    show_rows(settings, "entries", [{**row, "user": row["acting_user"]} for row in found], _SHOWN)
