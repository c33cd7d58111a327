"""Each queue in numbers, with the rate at which it is worked off."""

from __future__ import annotations

from datetime import timedelta

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import Row, counted, records, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.text import say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import refused
from airflow_provider_pgqueue.core.query import query


@click.command()
@click.argument("queue", required=False)
@click.option("--exact", is_flag=True, help="Count every message, which takes seconds where millions wait.")
@click.option(
    "--window", type=duration, default="10s", show_default=True, help="Time over which the rates are averaged."
)
@shared_options
@pass_settings
def stats(settings: Settings, queue: str | None, exact: bool, window: timedelta) -> None:
    """Show depth, ages and rates of each queue; `pgqueue top` shows them live.

    success_rate counts messages per second that were archived as success, dead_rate those with any other result.
    Of a queue with more than 10,000 messages it shows 10,000+; with --json counted_up_to says how far it counted.
    """
    with connected(settings) as conn:
        rows = _numbers(conn, queue, window if _may_rate(conn) else None, exact=exact)
    # How far it was counted shows in a plus.
    show_rows(settings, "queues", rows, [name for name in (rows[0] if rows else ()) if name != "counted_up_to"])


def _may_rate(conn: Connection) -> bool:
    """Return whether this login may read what the rates are made of; say once what is left out if not."""
    try:
        conn.execute(query("command/finished_by_queue"), [timedelta(0)])
    except psycopg.errors.InsufficientPrivilege as error:
        say(f"success_rate and dead_rate are left out: {refused(conn, error, wants='observer')}", err=True)
        return False
    return True


def _numbers(conn: Connection, queue: str | None, window: timedelta | None, *, exact: bool) -> list[Row]:
    """Return a row for each queue; without a window, its rates are None."""
    finished, seconds = {}, 1.0
    if window is not None:
        seconds = max(window.total_seconds(), 0.001)
        archived = conn.execute(query("command/finished_by_queue"), [window]).fetchall()
        finished = {name: (done, dead) for name, done, dead in archived}
    rows: list[Row] = []
    numbers = run(conn, verbs.status(queue, exact=exact))
    for row in records(numbers):
        done, dead = finished.get(row["queue_name"], (0, 0))
        rates: dict[str, float | None] = {"success_rate": done / seconds, "dead_rate": dead / seconds}
        if window is None:
            rates = dict.fromkeys(rates)
        rows.append({**counted(row), **rates})
    return rows
