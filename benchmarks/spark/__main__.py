"""Runs the benchmarks of the pipeline on Spark and prints one table: `python -m benchmarks.spark [--only CASE]`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from typing import Final

import pyspark

from benchmarks.report import Line, Report, about, table
from benchmarks.server import SETTINGS, Server
from benchmarks.spark.comparison import export_and_jdbc, publish_and_jdbc
from benchmarks.spark.drain import drain_and_objects
from benchmarks.spark.executors import drain_on_executors
from benchmarks.spark.growth import draw, growth
from benchmarks.spark.place import HOME, Place, warm_session
from tools import ROOT, run_main
from tools.binaries import find


def _growth(place: Place, scale: float, rounds: int) -> list[Line]:
    lines, figures = growth(place, [round(rows * scale) for rows in (100_000, 1_000_000, 3_000_000)])
    (HOME / "growth.json").write_text(json.dumps(figures))
    if scale == 1:
        draw(figures)
    return lines


CASES: Final[dict[str, Callable[[Place, float, int], list[Line]]]] = {
    "export": lambda place, scale, rounds: export_and_jdbc(place, round(1_000_000 * scale), rounds),
    "publish": lambda place, scale, rounds: publish_and_jdbc(place, round(1_000_000 * scale), rounds),
    "drain": lambda place, scale, rounds: drain_and_objects(place, round(100_000 * scale), rounds),
    "executors": lambda place, scale, rounds: drain_on_executors(place, round(20_000 * scale), rounds),
    "growth": _growth,
}


def main() -> None:
    """Run what is asked for; all of it is saved to benchmarks/results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the rows (1)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant, after one to warm up (3)")
    parser.add_argument("--pg", default=os.environ.get("PG") or "auto", help="debian or embedded")
    arguments = parser.parse_args()
    server = Server(find(arguments.pg).kind)
    with server.running(), warm_session(server) as place:
        report = Report(
            about(
                f"spark-{pyspark.__version__}-postgresql-{server.version().split()[0]}-{server.kind}",
                settings=", ".join(f"{name}={value}" for name, value in SETTINGS.items()),
                rounds=f"{arguments.rounds} in turns, after one to warm up",
                session="local[2], driver of 2 GB; executors and growth: a cluster of two workers of one core, 512 MB",
            )
        )
        for name in arguments.only or CASES:
            report.measure(name, partial(CASES[name], place, arguments.scale, arguments.rounds))
    print(f"\n{table(report.lines)}\n")
    if not arguments.only and arguments.scale == 1:
        print(f"saved as {report.save().relative_to(ROOT)}")


if __name__ == "__main__":
    run_main(main)
