"""The page of a triage: one HTML file that loads nothing and runs nothing, whatever the messages said."""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from airflow_provider_pgqueue.core.dead_causes import Period
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.unseen import legible
from airflow_provider_pgqueue.spark.pipelines.triage.causes import FINGERPRINTS, Cause, Causes

_SHOWN: Final = 100  # causes in the table
_URGENT: Final = ("new", "growing")
_FIRST: Final = 5  # causes to look at first
_SMALL, _LARGE = (132, 30), (1100, 119)  # width and height of the plot of a cause, and of that of all
_BARS: Final = 56


def write_report(path: Path, run_id: str, period: Period, found: Causes) -> None:
    """Write the page, whole or not at all. It has ids, references and normalised messages, and no body."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        try:
            part.write_text(render(run_id, period, found), encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        said = f"report {str(path)!r} cannot be written: {error.strerror}"
        raise InvalidArgument(said, "Give a file in a folder that exists; run it again.") from error


def render(run_id: str, period: Period, found: Causes) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": "{:,}".format, "moment": "{:%Y-%m-%d %H:%M}".format, "printable": legible}
    template = environment.from_string(
        files("airflow_provider_pgqueue.spark.pipelines.triage").joinpath("report.html").read_text(encoding="utf-8")
    )
    rows = [_row(place, cause) for place, cause in enumerate(found.causes[:_SHOWN])]
    return template.render(
        run_id=run_id,
        period=period,
        per="hour" if period.step == timedelta(hours=1) else "day",
        sums=found.sums,
        shares={
            "unremedied": _share(found.sums["unremedied"], found.sums["dead"]),
            "died_again": _share(found.sums["died_again"], found.sums["requeued"]),
        },
        trends=[(name, sum(cause["trend"] == name for cause in found.causes)) for name in _URGENT],
        first=[row for row in rows if row["trend"] in _URGENT and row["unremedied"]][:_FIRST],
        bars=_bars(found.series, *_LARGE),
        peak=max(found.series),
        rows=rows,
        most=FINGERPRINTS,
        unshown=found.sums["causes"] - len(rows),
    )


def _row(place: int, cause: Cause) -> dict[str, Any]:
    return cause | {
        "place": place + 1,
        "bars": _bars(cause["series"], *_SMALL),
        "peak": max(cause["series"]),
        "samples": list(zip(cause["sample_ids"], cause["sample_references"], strict=True)),
        "died_again_share": _share(cause["died_again"], cause["requeued"]),
    }


def _share(part: int, whole: int) -> str | None:
    """Return a percentage; never 0 % or 100 % of what is more than none or less than all."""
    if not whole:
        return None
    percent = round(100 * part / whole)
    sign = ""
    if 0 < part < whole and percent in (0, 100):
        sign, percent = ("<", 1) if percent == 0 else (">", 99)
    return f"{sign}{percent}\N{NO-BREAK SPACE}%"


def _bars(series: list[int], width: int, height: int) -> str:
    """Return a plot as the path of an SVG: a bar for each step, or for some steps together."""
    together = -(-len(series) // _BARS)
    counts = [sum(series[place : place + together]) for place in range(0, len(series), together)]
    across, up = width / len(counts), (height - 2) / max(1, *counts)
    return "".join(
        f"M{place * across:.1f} {height}v{-max(1.5, count * up):.1f}h{across * 0.8:.1f}V{height}z"
        for place, count in enumerate(counts)
        if count
    )
