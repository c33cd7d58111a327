"""The history of a queue as plots, each with the numbers for a table next to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_pgqueue.core.message import Row

_TRAFFIC: Final = (("arrivals", "published", "--c0"), ("success", "success", "--c2"), ("dead", "dead", "--c5"))
_LEVELS: Final = (("depth", "depth", "--c0"), ("leased", "leased", "--c1"), ("dead_now", "dead", "--c5"))
_WAITS: Final = (
    ("wait_p50", "p50", "--c4"),
    ("wait_p95", "p95", "--c0"),
    ("wait_p99", "p99", "--c3"),
    ("oldest_age", "oldest ready", "--c5"),
)
_RUNS: Final = (("run_p50", "p50", "--c4"), ("run_p95", "p95", "--c0"), ("run_p99", "p99", "--c3"))


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing. `values` is what the script draws; `names` and `rows` are the same as a table."""

    key: str
    title: str
    description: str
    values: str
    names: list[str]
    rows: list[tuple[datetime, list[Any]]]
    colours: list[str]
    empty: bool


def plots_of(history: list[Row], step: timedelta) -> list[Plot]:
    """Return the four plots of a queue's page."""
    per = {60: "minute", 900: "quarter of an hour"}.get(int(step.total_seconds()), "two hours")
    rows = [_with_sums(row) for row in history]
    said = (
        ("traffic", f"Traffic per {per}", "messages published, finished and dead", _TRAFFIC, "messages"),
        ("levels", "Messages in the queue", "depth, leased messages and dead messages", _LEVELS, "messages"),
        ("waits", "Time from publish to lease", "how long messages waited: p50, p95 and p99", _WAITS, "seconds"),
        ("runs", "Time from lease to archive", "how long handlers took: p50, p95 and p99", _RUNS, "seconds"),
    )
    return [_plot(key, title, description, rows, lines, unit) for key, title, description, lines, unit in said]


def _with_sums(row: Row) -> Row:
    dead = None if row["completions"] is None else row["completions"] - row["success"] - row["cancelled"]
    return row | {"dead_now": row["dead"], "dead": dead}


def _plot(
    key: str, title: str, description: str, rows: list[Row], lines: tuple[tuple[str, str, str], ...], unit: str
) -> Plot:
    series = [
        {"name": name, "colour": colour, "values": [_drawn(row[column]) for row in rows]}
        for column, name, colour in lines
    ]
    drawn = {
        "unit": unit,
        "times": [int(row["bucket_at"].timestamp()) for row in rows],
        "series": series,
    }
    return Plot(
        key,
        title,
        description,
        json.dumps(drawn, separators=(",", ":")),
        [name for _, name, _ in lines],
        [(row["bucket_at"], [row[column] for column, _, _ in lines]) for row in reversed(rows)],
        [colour.removeprefix("--c") for _, _, colour in lines],
        all(not any(one["values"]) for one in series),
    )


def _drawn(value: Any) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value
