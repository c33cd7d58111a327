"""The page of a triage: one HTML file that loads nothing and runs nothing, whatever the messages said."""

from __future__ import annotations

import base64
import io
import os
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from airflow_provider_pgqueue.spark.jobs.triage.causes import FINGERPRINTS, Cause, Causes
from airflow_provider_pgqueue.spark.jobs.triage.trend import Period

# Told apart by the colour-blind (Okabe and Ito, 2008), on a light and on a dark page.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_OTHERS: Final = "#9aa3ad"
_INK: Final = "#76808d"  # of the axes, on both
_SHOWN: Final = 100  # causes in the table
_URGENT: Final = ("new", "growing")
_FIRST: Final = 5  # causes to look at first
_SMALL: Final = (132, 30)  # width and height of a small plot
_BARS: Final = 56


def write_report(path: Path, run_id: str, period: Period, found: Causes) -> None:
    """Write the page, whole or not at all. It has ids, references and normalised messages, and no body."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(render(run_id, period, found), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def render(run_id: str, period: Period, found: Causes) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": "{:,}".format, "moment": "{:%Y-%m-%d %H:%M}".format, "printable": _printable}
    template = environment.from_string(
        files("airflow_provider_pgqueue.spark.jobs.triage").joinpath("report.html").read_text(encoding="utf-8")
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
        plots=[base64.b64encode(_plot(period, found, inches)).decode() for inches in ((11.2, 3.3), (4.2, 3.0))],
        rows=rows,
        coloured=len(_COLOURS),
        most=FINGERPRINTS,
        unshown=found.sums["causes"] - len(rows),
        others=_OTHERS,
        has_others=found.sums["causes"] > len(_COLOURS),
    )


def _row(place: int, cause: Cause) -> dict[str, Any]:
    return cause | {
        "place": place + 1,
        "colour": _COLOURS[place] if place < len(_COLOURS) else _OTHERS,
        "bars": _bars(cause["series"]),
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


def _bars(series: list[int]) -> str:
    """Return a small plot as the path of an SVG: a bar for each step, or for some steps together."""
    width, height = _SMALL
    together = -(-len(series) // _BARS)
    counts = [sum(series[place : place + together]) for place in range(0, len(series), together)]
    across, up = width / len(counts), (height - 2) / max(1, *counts)
    return "".join(
        f"M{place * across:.1f} {height}v{-max(1.5, count * up):.1f}h{across * 0.8:.1f}V{height}z"
        for place, count in enumerate(counts)
        if count
    )


def _plot(period: Period, found: Causes, inches: tuple[float, float]) -> bytes:
    """Return deaths over time, stacked by cause, as SVG. No text of a message is in it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "pgqueue", "font.size": 9, "axes.edgecolor": _INK}):
        figure = Figure(figsize=inches, layout="constrained", facecolor="none")
        _stack(figure.add_subplot(facecolor="none"), period, found)
        page = io.BytesIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(page, metadata={"Date": None})
    return page.getvalue()


def _stack(axes: Any, period: Period, found: Causes) -> None:
    largest = [cause["series"] for cause in found.causes[: len(_COLOURS)]]
    others = [count - sum(parts) for count, *parts in zip(found.series, *largest, strict=True)]
    edges = [period.first_step + place * period.step for place in range(period.steps + 1)]
    below = [0] * period.steps
    for series, colour in zip([*largest, others], [*_COLOURS[: len(largest)], _OTHERS], strict=True):
        above = [low + count for low, count in zip(below, series, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour)
        below = above
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(1, *below) * 1.15)
    axes.axvline(period.last_quarter, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        " last quarter", (period.last_quarter, 1), xycoords=("data", "axes fraction"), va="top", color=_INK, fontsize=8
    )
    _tidy(axes, "hour" if period.step == timedelta(hours=1) else "day")


def _tidy(axes: Any, per: str) -> None:
    from matplotlib import dates, ticker

    mpl: Any = dates
    days, hours = "%d %b", "%H:%M"
    locator = mpl.AutoDateLocator(minticks=2, maxticks=max(5, int(axes.figure.get_figwidth())))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        mpl.ConciseDateFormatter(
            locator,
            formats=["%Y", "%b %Y", days, hours, hours, hours],
            zero_formats=["%Y", "%b %Y", days, days, hours, hours],
            show_offset=False,
        )
    )
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel(f"deaths per {per}", color=_INK)
    axes.set_xlabel("time (UTC)", color=_INK)
    axes.grid(axis="y", color=_INK, alpha=0.25, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=_INK)


def _printable(text: str | None, longest: int = 300) -> str:
    """Return a text without what would reorder or hide the letters around it, cut off."""
    plain = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in (text or "")[: longest + 1]
    )
    return plain if len(plain) <= longest else plain[:longest] + "…"
