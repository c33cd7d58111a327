"""All queues on the whole screen, with their recent history."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, Lasting, connected_for_long
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import Row, console, show_line, status_rows, table
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import sparkline
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ConnectionFailed

_SORTS: Final = ("attention", "queue_name", "depth", "oldest_age", "in_rate", "out_rate", "dead")
_SHOWN = (
    *("queue_name", "paused", "depth", "ready", "leased", "delayed", "oldest_age"),
    *("in_rate", "out_rate", "dead_rate", "dead", "in", "out", "depths"),
)
# What gives way on a narrow screen, first to last; the name, the depth and the dead always stay.
_GIVES_WAY: Final = (
    *("dead_rate", "depths", "paused", "delayed", "out", "in"),
    *("out_rate", "in_rate", "leased", "oldest_age", "ready"),
)
_HISTORY = timedelta(minutes=30)
_POINTS: Final = (30, 15, 10)  # of a sparkline, on a wide screen and on narrower ones


@click.command()
@click.option("--once", is_flag=True, help="Print the queues once and exit, as it does without a terminal.")
@click.option("--interval", type=duration, default="2s", show_default=True, help="How often to refresh.")
@click.option("--sort", type=click.Choice(_SORTS), default="attention", show_default=True, help="The order of queues.")
@with_settings
def top(settings: Settings, once: bool, interval: timedelta, sort: str) -> None:
    """Show all queues live on the whole screen, with the history of the last half hour.

    The most pressing come first, as many as the screen has lines; Ctrl-C ends it. The history and the rates are those
    that the upkeep recorded.
    """
    with connected_for_long(settings) as lasting:
        if settings.as_json:
            while True:
                show_line(settings, {"queues": _looked(lasting, sort, None)}, "")
                if once:
                    return
                time.sleep(interval.total_seconds())
        elif once or not sys.stdout.isatty():
            rows, screen = _looked(lasting, sort, None), console()
            screen.print(_picture(rows, screen))
        else:
            _on_the_screen(lasting, sort, interval)


def _on_the_screen(lasting: Lasting, sort: str, interval: timedelta) -> None:
    from rich.live import Live

    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            rows = _looked(lasting, sort, max(1, screen.size.height - 1))
            live.update(_picture(rows, screen), refresh=True)
            time.sleep(interval.total_seconds())


def _looked(lasting: Lasting, sort: str, room: int | None) -> list[Row]:
    """Return what `_rows` finds, over another connection if this one breaks."""
    while True:
        try:
            rows = _rows(lasting.conn, sort, room)
        except (psycopg.Error, ConnectionFailed) as error:
            lasting.reopen(error)
        else:
            lasting.failures = 0
            return rows


def _rows(conn: Connection, sort: str, room: int | None) -> list[Row]:
    """Return the queues that there is room for, or all of them, with their history."""
    rates = {row["queue_name"]: row for row in run(conn, verbs.queue_rates())}
    levels = run(conn, verbs.status())
    rows = [_with_rates(row, rates.get(row["queue_name"])) for row in status_rows(levels)]
    rows.sort(key=lambda row: row["queue_name"])
    rows.sort(key=lambda row: _place(row, sort), reverse=sort != "queue_name")
    shown = rows[:room]
    lines: dict[str, Row] = {}
    for begin in range(0, len(shown), 100):
        names = [row["queue_name"] for row in shown[begin : begin + 100]]
        since = datetime.now(UTC) - _HISTORY
        lines |= {row["queue_name"]: row for row in run(conn, verbs.queue_sparklines(names, since=since))}
    return [_with_history(row, lines.get(row["queue_name"])) for row in shown]


def _with_rates(row: Row, rates: Row | None) -> Row:
    per_second = {"arrivals": "in_rate", "success": "out_rate", "dead": "dead_rate"}
    return {**row, **{name: rates[key] / rates["seconds"] if rates else 0.0 for key, name in per_second.items()}}


def _with_history(row: Row, line: Row | None) -> Row:
    series = {"in": "arrivals", "out": "success", "depths": "depth"}
    return {**row, **{name: line[key] if line else [] for name, key in series.items()}}


def _place(row: Row, sort: str) -> Any:
    age = row["oldest_age"] or timedelta(0)
    if sort == "attention":
        # Nobody leases what waits; then what waits longest; then what is dead.
        return (row["ready"] > 0 and row["leased"] == 0, age, row["dead"], row["depth"])
    return age if sort == "oldest_age" else row[sort]


def _picture(rows: Sequence[Row], screen: Any) -> Any:
    """Return a line for each queue, with shorter plots and fewer columns where the screen is narrow."""
    if not rows:
        return "no queues"
    columns, points = list(_SHOWN), _POINTS[0]
    narrower = [*((fewer, None) for fewer in _POINTS[1:]), *((_POINTS[-1], name) for name in _GIVES_WAY)]
    wide = screen.options.update(width=10_000)
    while (
        (made := _in_lines(rows, columns, points))
        and screen.measure(made, options=wide).maximum > screen.width
        and narrower
    ):
        points, dropped = narrower.pop(0)
        columns = [name for name in columns if name != dropped]
    return made


def _in_lines(rows: Sequence[Row], columns: Sequence[str], points: int) -> Any:
    made = table([_drawn(row, points) for row in rows], columns)
    for column in made.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return made


def _drawn(row: Row, points: int) -> Row:
    lines = {name: sparkline(row[name][-points:]) for name in ("in", "out", "depths")}
    return {**row, **lines}
