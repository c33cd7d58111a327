"""Queues and workers in numbers, with the rates at which they work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, connected_for_long
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import Row, show_line, show_rows, status_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import print_text
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ConnectionFailed, refused
from airflow_provider_pgqueue.core.query import query

_WORKERS = (
    *("worker", "queue_name", "leased", "leased_since", "lease_ends_at", "finished", "dead"),
    *("finished_rate", "run_avg", "last_at"),
)
# A queue without messages, and an installation without maintenance, have no value in these columns.
_ABSENT = {"oldest_age": "none", "maintenance_age": "never", "limited_until": "no"}


@click.command()
@click.argument("queue", required=False)
@click.option("--workers", is_flag=True, help="Show also who leases messages now, since when, and how fast each works.")
@click.option("--watch", type=duration, metavar="DURATION", help="Look again every so often, such as 2s, until Ctrl-C.")
@click.option("--exact", is_flag=True, help="Count every message, which takes seconds where millions wait.")
@click.option(
    "--window", type=duration, default="10s", show_default=True, help="Time over which the rates are averaged."
)
@with_settings
def stats(
    settings: Settings, queue: str | None, workers: bool, watch: timedelta | None, exact: bool, window: timedelta
) -> None:
    """Show depth, ages and rates of each queue, and who works on it.

    success_rate counts messages per second that were archived as success, dead_rate those with any other result.
    Of a queue with more than 10,000 messages it shows 10,000+; with --json counted_up_to says how far it counted.

    Workers are shown by the names that they gave themselves, including those that hold nothing now but finished
    something in the last five minutes.
    """
    left_out = ""
    with connected_for_long(settings) as lasting:
        while True:
            try:
                finished, why = _finished(lasting.conn, window)
                numbers = run(lasting.conn, verbs.status(queue, exact=exact))
                working = _workers(lasting.conn, queue) if workers else []
            except (psycopg.Error, ConnectionFailed) as error:
                if watch is None:
                    raise
                lasting.reopen(error)
                continue
            lasting.failures = 0
            if why != left_out:
                left_out = why
                print_text(f"success_rate and dead_rate are left out: {why}", err=True)
            seconds = max(window.total_seconds(), 0.001)
            rows = [{**row, **_rates(finished, row["queue_name"], seconds)} for row in status_rows(numbers)]
            _show(settings, rows, working if workers else None)
            if watch is None:
                return
            time.sleep(watch.total_seconds())


def _finished(conn: Connection, window: timedelta) -> tuple[dict[str, tuple[int, int]] | None, str]:
    """Return how many messages of each queue succeeded and died; None and why, if this login may not read that."""
    try:
        archived = conn.execute(query("finished_by_queue"), [window]).fetchall()
    except psycopg.errors.InsufficientPrivilege as error:
        return None, str(refused(conn, error, wants="observer"))
    return {name: (done, dead) for name, done, dead in archived}, ""


def _rates(finished: dict[str, tuple[int, int]] | None, queue_name: str, seconds: float) -> Row:
    if finished is None:
        return {"success_rate": None, "dead_rate": None}
    done, dead = finished.get(queue_name, (0, 0))
    return {"success_rate": done / seconds, "dead_rate": dead / seconds}


def _workers(conn: Connection, queue: str | None) -> list[Row]:
    found = run(conn, verbs.workers(queue))
    return [{"finished_rate" if name == "per_second" else name: value for name, value in row.items()} for row in found]


def _show(settings: Settings, queues: Sequence[Row], workers: Sequence[Row] | None) -> None:
    if settings.as_json:
        show_line(settings, {"queues": queues} if workers is None else {"queues": queues, "workers": workers}, "")
        return
    click.clear()  # nothing where there is no terminal
    # A plus after a number shows where the count stopped.
    columns = [name for name in (queues[0] if queues else ()) if name != "counted_up_to"]
    show_rows(settings, "queues", queues, columns, _ABSENT)
    if workers is not None:
        print_text("")
        show_rows(settings, "workers", workers, _WORKERS)
