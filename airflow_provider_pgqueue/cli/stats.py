"""Each queue in numbers, with the rate at which it is worked off."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, Lasting, connected_for_long
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import Row, console, counted, records, show_line, show_rows, table
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.text import say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ConnectionFailed, refused
from airflow_provider_pgqueue.core.query import query


@click.command()
@click.argument("queue", required=False)
@click.option("--exact", is_flag=True, help="Count every message, which takes seconds where millions wait.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval", type=duration, default="2s", show_default=True, help="Time between two refreshes of --watch."
)
@click.option(
    "--window", type=duration, default="10s", show_default=True, help="Time over which the rates are averaged."
)
@click.option("--refreshes", type=click.IntRange(1), help="End --watch after this many refreshes.")
@shared_options
@pass_settings
def stats(
    settings: Settings,
    queue: str | None,
    exact: bool,
    watch: bool,
    interval: timedelta,
    window: timedelta,
    refreshes: int | None,
) -> None:
    """Show depth, ages and rates of each queue, once or live.

    success_rate counts messages per second that were archived as success, dead_rate those with any other result.
    Of a queue with more than 10,000 messages it shows 10,000+; with --json counted_up_to says how far it counted.
    """
    with connected_for_long(settings) as lasting:
        rated = _may_rate(lasting.conn)
        if not watch:
            rows = _numbers(lasting.conn, queue, window if rated else None, exact=exact)
            show_rows(settings, "queues", rows, _columns(rows))
            return
        _watch(settings, _repeated(lasting, queue, window if rated else None, interval, refreshes, exact=exact))


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


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return what people see: how far it was counted shows in a plus."""
    return [name for name in (rows[0] if rows else ()) if name != "counted_up_to"]


def _repeated(
    lasting: Lasting,
    queue: str | None,
    window: timedelta | None,
    interval: timedelta,
    refreshes: int | None,
    *,
    exact: bool,
) -> Iterator[list[Row]]:
    done = 0
    while True:
        try:
            numbers = _numbers(lasting.conn, queue, window, exact=exact)
        except (psycopg.Error, ConnectionFailed) as error:
            lasting.reopen(error)
            continue
        lasting.failures = 0
        yield numbers
        done += 1
        if refreshes is not None and done >= refreshes:
            return
        time.sleep(interval.total_seconds())


def _watch(settings: Settings, numbers: Iterator[list[Row]]) -> None:
    if settings.as_json:
        for rows in numbers:
            show_line(settings, {"queues": rows}, "")
        return
    from rich.live import Live

    screen = console()
    if not screen.is_terminal:  # each table at once, as whoever reads the pipe waits for it
        for rows in numbers:
            screen.print(_shown(rows))
            sys.stdout.flush()
        return
    with Live(console=screen, auto_refresh=False) as live:
        for rows in numbers:
            live.update(_shown(rows), refresh=True)


def _shown(rows: Sequence[Row]) -> Any:
    return table(rows, _columns(rows)) if rows else "no queues"
