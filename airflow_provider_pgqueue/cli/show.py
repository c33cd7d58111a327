"""What is known of messages: the life of one, and finding them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from airflow_provider_pgqueue.cli.causes import fingerprint
from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import time_options
from airflow_provider_pgqueue.cli.output import Row, number_option, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

_STATES = click.Choice(
    ["ready", "delayed", "leased", "done", "dead", "success", "failed", "rejected", "lock_expired", "expired"]
)
_FOUND = ("id", "queue_name", "state", "at", "attempts", "worker", "reference", "cause", "error")


@click.command()
@click.argument("id", type=click.IntRange(0, 2**63 - 1))
@shared_options
@pass_settings
def show(settings: Settings, id: int) -> None:
    """Show everything recorded about one message, in the order of time.

    When it was published, delayed, leased and by whom, handed to a DAG run, archived with which result, and requeued as
    which message. The body is not shown.
    """
    with connected(settings) as conn:
        life = run(conn, verbs.message_life(id))
    if not life:
        raise click.ClickException(
            f"message {id} is not known: it was never published, was purged, or its archive is gone."
        )
    show_rows(settings, "entries", life, _used(life))


def _used(rows: Sequence[Row]) -> list[str]:
    """Return the columns that say something."""
    return [name for name in rows[0] if any(row[name] is not None for row in rows)]


@click.command()
@click.argument("queue", required=False)
@click.option("--reference", help="Only messages with this reference, the key of the publisher.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header, as JSON or text; can be repeated."
)
@click.option("--state", type=_STATES, help="Only messages in this state, or that ended so.")
@click.option(
    "--cause", type=fingerprint, help="Only messages of this cause: a fingerprint that `pgqueue causes` prints."
)
@click.option("--topic", metavar="PATTERN", help="Only messages whose topic matches, such as 'orders.#'.")
@time_options("messages published, or archived,")
@number_option("messages")
@shared_options
@pass_settings
def search(
    settings: Settings,
    queue: str | None,
    reference: str | None,
    headers: tuple[str, ...],
    state: str | None,
    cause: str | None,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    number: int,
) -> None:
    """Find messages by state, reference, topic, headers, cause and time, newest first.

    Finds unfinished messages and archived ones. Bodies are not shown.
    """
    with connected(settings) as conn:
        statement = verbs.search_messages(
            queue,
            reference=reference,
            headers=dict(map(_header, headers)) if headers else None,
            state=state,
            fingerprint=cause,
            topic=topic,
            since=since,
            until=until,
            max_messages=number,
        )
        found = run(conn, statement)
    show_rows(settings, "messages", found, _FOUND)


def _header(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{given!r} is not NAME=VALUE.", param_hint="--header")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
