"""The page of a triage: one HTML file that loads nothing and runs nothing, whatever the messages said."""

from __future__ import annotations

import base64
import io
import os
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from airflow_provider_pgqueue.spark.causes import Cause, Causes
from airflow_provider_pgqueue.spark.trend import Window

_COLOURS: Final = ("#3b6fb6", "#e07b39", "#4f9d69", "#b5485d", "#8366b0", "#c9a227", "#3d9ea8", "#a2673f")
_OTHERS: Final = "#b8bec6"
_SHOWN: Final = 100  # causes in the table
_SPARK: Final = (120.0, 26.0)  # width and height of a small plot


def write_report(path: Path, run_id: str, window: Window, found: Causes) -> None:
    """Write the page, whole or not at all. It has ids, references and normalised messages, and no body."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(render(run_id, window, found), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def render(run_id: str, window: Window, found: Causes) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": "{:,}".format, "moment": "{:%Y-%m-%d %H:%M}".format, "printable": _printable}
    template = environment.from_string(
        files("airflow_provider_pgqueue.spark.pipelines").joinpath("triage_report.html").read_text(encoding="utf-8")
    )
    return template.render(
        run_id=run_id,
        window=window,
        per="hour" if window.step == timedelta(hours=1) else "day",
        sums=found.sums,
        verdicts=[(name, sum(cause["verdict"] == name for cause in found.causes)) for name in ("new", "growing")],
        plot=base64.b64encode(_plot(window, found)).decode(),
        rows=[_row(place, cause) for place, cause in enumerate(found.causes[:_SHOWN])],
        unshown=found.sums["causes"] - len(found.causes[:_SHOWN]),
        others=_OTHERS,
        has_others=found.sums["causes"] > len(_COLOURS),
    )


def _row(place: int, cause: Cause) -> dict[str, Any]:
    return cause | {
        "colour": _COLOURS[place] if place < len(_COLOURS) else _OTHERS,
        "line": _line(cause["series"]),
        "samples": list(zip(cause["sample_ids"], cause["sample_references"], strict=True)),
        "died_again_share": f"{cause['died_again'] / cause['requeued']:.0%}" if cause["requeued"] else None,
    }


def _line(series: list[int]) -> str:
    """Return the points of a small plot, as an SVG polyline takes them."""
    width, height = _SPARK
    across, up = width / max(1, len(series) - 1), (height - 3) / max(1, *series)
    return " ".join(f"{place * across:.1f},{height - 1.5 - count * up:.1f}" for place, count in enumerate(series))


def _plot(window: Window, found: Causes) -> bytes:
    """Return deaths over time, stacked by cause, as SVG. No text of a message is in it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "pgqueue", "font.size": 9, "axes.edgecolor": "#c8ced6"}):
        figure = Figure(figsize=(11.2, 3.2), layout="constrained")
        _stack(figure.add_subplot(), window, found)
        page = io.BytesIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(page, metadata={"Date": None})
    return page.getvalue()


def _stack(axes: Any, window: Window, found: Causes) -> None:
    largest = [cause["series"] for cause in found.causes[: len(_COLOURS)]]
    others = [count - sum(parts) for count, *parts in zip(found.series, *largest, strict=True)]
    edges = [window.first_step + place * window.step for place in range(window.steps + 1)]
    below = [0] * window.steps
    for series, colour in zip([*largest, others], [*_COLOURS[: len(largest)], _OTHERS], strict=True):
        above = [low + count for low, count in zip(below, series, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour)
        below = above
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(1, *below) * 1.08)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    from matplotlib import dates

    mpl: Any = dates
    locator = mpl.AutoDateLocator(maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(mpl.ConciseDateFormatter(locator))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#e6e9ee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors="#5b6675")


def _printable(text: str | None, longest: int = 300) -> str:
    """Return a text without what would reorder or hide the letters around it, cut off."""
    plain = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in (text or "")[: longest + 1]
    )
    return plain if len(plain) <= longest else plain[:longest] + "…"
