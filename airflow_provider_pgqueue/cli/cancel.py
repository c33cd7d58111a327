"""Cancels messages that nobody needs any more."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity


@click.command()
@click.argument("queue")
@click.argument("ids", metavar="ID...", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--reason", help="Kept in the archive, as the details of each.")
@shared_options
@pass_settings
def cancel(settings: Settings, queue: str, ids: tuple[int, ...], reason: str | None) -> None:
    """Archive messages of a queue as cancelled.

    Whether they wait or are leased: whoever works on one has lost it, and learns it when the lease is extended or the
    message archived. A cancelled message is not dead. What was finished already stays as it is.
    """
    with connected(settings) as conn:
        done = run(conn, verbs.cancel(queue, ids, reason=reason))
    left = [id for id in ids if id not in done]
    say = f"cancelled {quantity(len(done))} of {queue}."
    if left:
        say += f" Not in the queue any more: {', '.join(map(str, left))}."
    show_done(settings, {"queue_name": queue, "cancelled": done, "left_out": left}, say)
