"""Deletes what waits."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import connected, status_for
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity, seen


@click.command()
@click.argument("queue")
@yes_option
@shared_options
@pass_settings
def purge(settings: Settings, queue: str, yes: bool) -> None:
    """Delete the waiting messages of a queue.

    They are not archived. Leased messages stay.
    """
    with connected(settings) as conn:
        found = status_for(conn, queue, "purge_queue")
        waiting = seen(found.ready + found.delayed, found.depth, found.counted_up_to)
        confirm(f"Delete {quantity(waiting)} of queue {queue} for good?", yes=yes)
        deleted = run(conn, verbs.purge_queue(queue))
    show_done(settings, {"queue_name": queue, "messages_deleted": deleted}, f"deleted {quantity(deleted)} of {queue}.")
