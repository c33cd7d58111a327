"""Follows the archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import Lasting, connected_for_long
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import Row, cell, show_line
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.query import query

_LATEST = timedelta(seconds=30)  # the longest time from archiving to the commit that is covered


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--since", type=duration, default="0", help="Begin with messages archived this long ago: 90s, 10m, 2h, 1d."
)
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Continue until Ctrl-C, or print the messages that are there and end.",
)
@click.option("--stop-after", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option(
    "--poll-interval", type=duration, default="1s", show_default=True, help="Time between two looks at the archive."
)
@with_settings
def tail(
    settings: Settings,
    queue: str | None,
    since: timedelta,
    follow: bool,
    stop_after: int | None,
    poll_interval: timedelta,
) -> None:
    """Print messages as they are archived.

    Each line has the time, id, queue, result, run time, who handled the message, and the reason if it failed.
    """
    with connected_for_long(settings) as lasting:
        if queue is not None:
            run(lasting.conn, verbs.status(queue))
        for number, row in enumerate(_finished(lasting, queue, since, poll_interval if follow else None), 1):
            show_line(settings, row, _line(row))
            if number == stop_after:
                return


def _line(row: Row) -> str:
    text = f"{row['archived_at'].astimezone():%H:%M:%S} {row['id']} {row['queue_name']} {row['result']}"
    text += f" {cell(row['run_time'])} {row['handled_by'] or '-'}"
    return f"{text} {row['details']}" if row["details"] else text


def _finished(lasting: Lasting, queue: str | None, since: timedelta, poll_interval: timedelta | None) -> Iterator[Row]:
    """Yield each archived message once.

    Each poll covers the last half minute again, because a message has the time of its statement but appears at the
    commit. A message that commits later than that is missed. A lost connection is opened again.
    """
    ((begin,),) = lasting.conn.execute(query("moment_before"), [since], binary=True).fetchall()
    newest, seen = begin, dict[tuple[int, Any], None]()
    while True:
        try:
            with lasting.conn.cursor(row_factory=dict_row, binary=True) as cursor:
                arguments = {"since": max(begin, newest - _LATEST), "queue": queue}
                for found in cursor.stream(query("finished_since"), arguments):
                    key = (found["id"], found["archived_at"])
                    if key not in seen:
                        seen[key] = None
                        newest = max(newest, found["archived_at"])
                        yield found
        except psycopg.Error as error:
            if poll_interval is None:
                raise
            lasting.reopen(error)
            continue
        lasting.failures = 0
        if poll_interval is None:
            return
        seen = {key: None for key in seen if key[1] > newest - _LATEST}
        time.sleep(poll_interval.total_seconds())
