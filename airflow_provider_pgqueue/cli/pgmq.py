"""Moves a queue of PGMQ here."""

from __future__ import annotations

from dataclasses import asdict

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core import pgmq
from airflow_provider_pgqueue.core.quantity import quantity


@click.command()
@click.argument("queue")
@click.option("--to", "queue_name", metavar="NAME", help="The queue here. Default: one of the same name.")
@with_settings
def adopt_pgmq(settings: Settings, queue: str, queue_name: str | None) -> None:
    """Move a queue of the extension PGMQ here, while its publishers continue.

    Order, headers, delays and the archive stay, and from then on what they send there is published here. A message that
    a worker of PGMQ has at the moment is left to it: run it again when its vt has passed.
    """
    with connected(settings) as conn:
        adopted = pgmq.adopt(conn, queue, queue_name or queue)
    said = (
        f"moved {quantity(adopted.moved)} and {quantity(adopted.archived, 'archived message')} to {adopted.queue_name}."
    )
    if adopted.leased_until:
        said += f" Workers have {quantity(adopted.leased)} until {adopted.leased_until:%H:%M:%S %Z}: run it again then."
    show_done(settings, asdict(adopted), said)
