"""Cancels and deletes messages by hand."""

from __future__ import annotations

import click

from airflow_provider_pgqueue.cli.connection import ask, connected, status_for
from airflow_provider_pgqueue.cli.options import confirm, yes_option
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity, seen


@click.command()
@click.argument("queue")
@click.argument("ids", metavar="ID...", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--reason", help="Kept in the archive, as the details of each.")
@with_settings
def cancel(settings: Settings, queue: str, ids: tuple[int, ...], reason: str | None) -> None:
    """Archive messages of a queue as cancelled.

    Whether they wait or are leased: whoever works on one has lost it, and learns it when the lease is extended or the
    message archived. A cancelled message is not dead, and its dedup key can be used again. What was finished already
    stays as it is.
    """
    done = ask(settings, verbs.cancel(queue, ids, reason=reason))
    left = [id for id in ids if id not in done]
    said = f"cancelled {quantity(len(done))} of {queue}."
    if left:
        said += f" Not in the queue any more: {', '.join(map(str, left))}."
    show_done(settings, {"queue_name": queue, "cancelled": done, "left_out": left}, said)


@click.command()
@click.argument("queue")
@yes_option
@with_settings
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
