"""One table of what was measured, on the terminal and as files."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.curve import Curve
from benchmarks.measure import spread
from tools import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what, ours, the other, the ratio of their medians and what it has to be.

    :param at_least: False for what should be small: then the ratio may be at most `target`.
    :param target: None for a line that only informs.
    """

    case: str
    other: str
    ours_samples: Sequence[float]
    other_samples: Sequence[float]
    unit: str = "msg/s"
    target: float | None = None
    at_least: bool = True
    note: str = ""

    @property
    def ratio(self) -> float:
        """Ours divided by the other's."""
        return median(self.ours_samples) / median(self.other_samples)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def cells(self) -> list[str]:
        """Return the line as texts."""
        sign = "≥" if self.at_least else "≤"
        return [
            self.case,
            self.other,
            _value(self.ours_samples, self.unit),
            _value(self.other_samples, self.unit),
            _unrounded(self.ratio, down=self.at_least),
            "" if self.target is None else f"{sign} {self.target:g}",
            {None: "", True: "yes", False: "NO"}[self.met],
            self.note,
        ]


@dataclass(frozen=True, slots=True)
class Limit:
    """One line with an absolute limit: a time, a number of statements."""

    case: str
    samples: Sequence[float]
    unit: str
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the limit; None without one."""
        return None if self.target is None else median(self.samples) <= self.target

    def cells(self) -> list[str]:
        """Return the line as texts."""
        limit = "" if self.target is None else f"≤ {self.target:g} {self.unit}".strip()
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return [self.case, "", _value(self.samples, self.unit), "", "", limit, met, self.note]


Line = Row | Limit
HEAD: Final = ["case", "compared with", "pgqueue", "the other", "ratio", "target", "met", "note"]


def _value(samples: Sequence[float], unit: str) -> str:
    middle = median(samples)
    number = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
    around = f" ±{spread(list(samples)):.0%}" if len(samples) > 1 else ""
    return f"{number} {unit}{around}".replace(" msg/s", "")


def _unrounded(ratio: float, *, down: bool) -> str:
    """Two digits that never look better than the ratio is."""
    return f"{(math.floor if down else math.ceil)(ratio * 100) / 100:.2f}"


def table(lines: Sequence[Line]) -> str:
    """Return the lines as a Markdown table."""
    cells = [HEAD, *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


@dataclass(frozen=True, slots=True)
class Report:
    """All lines of one run and what they were measured with."""

    about: Mapping[str, Any]
    lines: list[Line] = field(default_factory=list)
    curves: Sequence[Curve] = ()

    def measure(self, name: str, case: Callable[[], list[Line]]) -> None:
        """Add the lines of a case, and print them."""
        started = time.monotonic()
        lines = case()
        self.lines.extend(lines)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        for line in lines:
            print(f"| {' | '.join(line.cells())} |", flush=True)

    def save(self) -> Path:
        """Write the table and all samples; return the table's path."""
        RESULTS.mkdir(exist_ok=True)
        name = f"{self.about['at'][:16].replace(':', '')}-{self.about['server']}-{self.about['commit'][:10]}"
        values = [
            {"kind": type(line).__name__, "met": line.met}
            | {name: getattr(line, name) for name in line.__dataclass_fields__}
            for line in self.lines
        ]
        curves = [{name: getattr(curve, name) for name in curve.__dataclass_fields__} for curve in self.curves]
        path = RESULTS / f"{name}.md"
        path.with_suffix(".json").write_text(
            json.dumps({"about": self.about, "lines": values, "curves": curves}, indent=1, default=list) + "\n"
        )
        about = "\n".join(f"* {key}: {value}" for key, value in self.about.items())
        path.write_text(f"# Benchmark of {self.about['at'][:10]}\n\n{about}\n\n{table(self.lines)}\n")
        return path


def about(server: str, **more: Any) -> dict[str, Any]:
    """Return when, where and of what commit this is; nothing that names the host."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": server,
        "commit": _git("rev-parse", "HEAD") + (" and changes" if _git("status", "--porcelain", "sql") else ""),
        "machine": f"{os.cpu_count()} cores ({_cpu()}), {_memory()} GiB, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    } | more


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
