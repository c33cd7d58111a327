"""Queues and workers in numbers, with the rates at which they work."""

from __future__ import annotations

from datetime import timedelta

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, ask, connected
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import Row, show_rows, status_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import refused
from airflow_provider_pgqueue.core.query import query

_WORKERS = (
    *("worker", "queue_name", "leased", "leased_since", "lease_ends_at", "finished", "dead"),
    *("finished_rate", "run_avg", "last_at"),
)


@click.command()
@click.argument("queue", required=False)
@click.option("--exact", is_flag=True, help="Count every message, which takes seconds where millions wait.")
@click.option(
    "--window", type=duration, default="10s", show_default=True, help="Time over which the rates are averaged."
)
@with_settings
def stats(settings: Settings, queue: str | None, exact: bool, window: timedelta) -> None:
    """Show depth, ages and rates of each queue; `pgqueue top` shows them live.

    success_rate counts messages per second that were archived as success, dead_rate those with any other result.
    Of a queue with more than 10,000 messages it shows 10,000+; with --json counted_up_to says how far it counted.
    """
    with connected(settings) as conn:
        finished, numbers = _finished(conn, window), run(conn, verbs.status(queue, exact=exact))
    seconds = max(window.total_seconds(), 0.001)
    rows = [{**row, **_rates(finished, row["queue_name"], seconds)} for row in status_rows(numbers)]
    # How far it was counted shows in a plus.
    show_rows(settings, "queues", rows, [name for name in (rows[0] if rows else ()) if name != "counted_up_to"])


def _finished(conn: Connection, window: timedelta) -> dict[str, tuple[int, int]] | None:
    """Return how many messages of each queue succeeded and died; None, said once, if this login may not read that."""
    try:
        archived = conn.execute(query("command/finished_by_queue"), [window]).fetchall()
    except psycopg.errors.InsufficientPrivilege as error:
        say(f"success_rate and dead_rate are left out: {refused(conn, error, wants='observer')}", err=True)
        return None
    return {name: (done, dead) for name, done, dead in archived}


def _rates(finished: dict[str, tuple[int, int]] | None, queue_name: str, seconds: float) -> Row:
    if finished is None:
        return {"success_rate": None, "dead_rate": None}
    done, dead = finished.get(queue_name, (0, 0))
    return {"success_rate": done / seconds, "dead_rate": dead / seconds}


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--window", type=duration, default="5m", show_default=True, help="Time over which finished messages are counted."
)
@with_settings
def workers(settings: Settings, queue: str | None, window: timedelta) -> None:
    """Show who leases messages now, for how long, and how fast each works.

    Workers are shown by the names that they gave themselves, including those that hold nothing now but finished
    something recently.
    """
    found = ask(settings, verbs.workers(queue, period=window))
    rows = [{"finished_rate" if name == "per_second" else name: value for name, value in row.items()} for row in found]
    show_rows(settings, "workers", rows, _WORKERS)
