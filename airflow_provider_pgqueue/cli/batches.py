"""Closes batches, whose end is a message."""

from __future__ import annotations

from typing import Any

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.lines import json_object
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


@click.command()
@click.argument("queue")
@click.argument("batch")
@click.option("--into", "into_queue", required=True, metavar="QUEUE", help="The queue that the end is published to.")
@click.option("--expected", type=click.IntRange(0), help="Wait until at least so many of its messages have ended.")
@click.option("--headers", type=json_object, metavar="JSON", help="Headers of the end, as a JSON object.")
@shared_options
@pass_settings
def close_batch(
    settings: Settings, queue: str, batch: str, into_queue: str, expected: int | None, headers: dict[str, Any] | None
) -> None:
    """Say that all messages of a batch are published, so that its end becomes a message.

    The messages of a batch are those of a queue whose header `batch` is BATCH. When all have ended, one message with
    the numbers of their results is published. Messages of a transaction that is still open are not seen: give
    --expected to wait for them.
    """
    statement = verbs.close_batch(queue, batch, into_queue, expected=expected, headers=headers)
    with connected(settings) as conn:
        is_open = run(conn, statement)
    say = f"closed batch {batch} of {queue}: its end goes to {into_queue}."
    done = {"queue_name": queue, "batch": batch, "into_queue": into_queue, "open": is_open}
    show_done(settings, done, say if is_open else f"batch {batch} of {queue} had ended already.")
