"""Curves of growth: one measure at several sizes, for the table, for the results and as a plot in the documentation.

    .venv/bin/python -m benchmarks.curve benchmarks/results/RESULT.json

draws the plots of a run anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools import ROOT

FOLDER: Final = ROOT / "docs" / "images"
Series = Mapping[str, Mapping[int, Sequence[float]]]  # of each contestant its samples by size
_COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555")


@dataclass(frozen=True, slots=True)
class Curve:
    """Samples of one measure by size, for each of those who were measured.

    :param name: names the picture.
    :param x: what grows.
    :param y: what is measured, with its unit.
    :param limit: what the measure has to reach or keep below, if that is one number.
    """

    name: str
    x: str
    y: str
    series: Series
    limit: float | None = None


def draw(curves: Sequence[Curve]) -> None:
    """Draw each curve as a picture of the documentation.

    matplotlib is a package of the project and not of the peers, so a process of the project draws.
    """
    values = [{name: getattr(curve, name) for name in curve.__dataclass_fields__} for curve in curves]
    subprocess.run(
        [ROOT / ".venv" / "bin" / "python", "-m", "benchmarks.curve"],
        input=json.dumps(values),
        text=True,
        cwd=ROOT,
        check=True,
    )


def _picture(curve: Mapping[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    for color, (name, by_size) in zip(_COLORS, curve["series"].items(), strict=False):
        sizes = [int(size) for size in by_size]
        middles = [sorted(samples)[len(samples) // 2] for samples in by_size.values()]
        axes.plot(sizes, middles, marker="o", color=color, label=name)
        lowest, highest = list(map(min, by_size.values())), list(map(max, by_size.values()))
        axes.fill_between(sizes, lowest, highest, color=color, alpha=0.15)
    if curve["limit"] is not None:
        axes.axhline(curve["limit"], linestyle=":", color="gray", label="target")
    axes.set(xlabel=curve["x"], ylabel=curve["y"], xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    saved = [curve for name in sys.argv[1:] for curve in json.loads(Path(name).read_text())["curves"]]
    for curve in saved or json.load(sys.stdin):
        path = FOLDER / f"{curve['name']}.svg"
        _picture(curve, path)
        print(f"drawn: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
