"""What was done to the queues by hand, and by whom."""

from __future__ import annotations

from datetime import datetime

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import time_options
from airflow_provider_pgqueue.cli.output import number_option, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_SHOWN = ("at", "user", "login", "action", "queue", "affected", "arguments")


@click.command()
@click.argument("queue", required=False)
@click.option("--user", help="Only what this user did, or the login of this name.")
@click.option("--action", help="Only this verb, such as purge_queue.")
@time_options("what was done")
@number_option("entries")
@shared_options
@pass_settings
def audit(
    settings: Settings,
    queue: str | None,
    user: str | None,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
    number: int,
) -> None:
    """Show what was done to the queues by hand, and by whom, newest first.

    QUEUE may be one that was dropped since. The user is whoever a web page acted for; the login is the one that did it.
    """
    statement = verbs.audit_log(queue, since=since, until=until, max_entries=number, by_user=user, verb=action)
    with connected(settings) as conn:
        found = run(conn, statement)
    show_rows(settings, "entries", [{**row, "user": row["acting_user"]} for row in found], _SHOWN)
