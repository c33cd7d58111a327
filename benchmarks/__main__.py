"""Runs the benchmarks and prints one table: `python -m benchmarks [--quick] [--only CASE] [--pg embedded]`."""

from __future__ import annotations

import argparse
import os
from functools import partial

from benchmarks import backlog, cases, drain, growth, latency, snapshot  # noqa: F401 each registers its cases
from benchmarks.anchors import cases as anchors  # noqa: F401 as they do
from benchmarks.bench import CASES, Bench
from benchmarks.curve import draw
from benchmarks.peers import pgmq
from benchmarks.report import Report, about, table
from benchmarks.server import SETTINGS, Server
from tools import ROOT, run_main
from tools.binaries import find


def main() -> None:
    arguments = _arguments()
    if arguments.list:
        for one in CASES.values():
            print(f"{one.name:24}{'' if one.quick else '(full only) '}{one.what}")
        return
    wanted = _wanted(arguments)
    server = Server(find(arguments.pg).kind)
    with server.running():
        bench = Bench(
            server,
            quick=arguments.quick,
            seconds=arguments.seconds or (1 if arguments.quick else 2),
            rounds=arguments.rounds or (3 if arguments.quick else 5),
            minutes=arguments.minutes or (1 / 3 if arguments.quick else 5),
        )
        report = Report(
            about(
                f"postgresql-{server.version().split()[0]}-{server.kind}",
                pgmq=pgmq.version(),
                slices=f"{bench.rounds} of {bench.seconds:g} s each, in turns",
                settings=", ".join(f"{name}={value}" for name, value in SETTINGS.items()),
            ),
            curves=bench.curves,
        )
        saved = None
        for name in wanted:
            report.measure(name, partial(CASES[name].run, bench))
            if not arguments.only:
                saved = report.save()
    print(f"\n{table(report.lines)}\n")
    if saved:
        print(f"saved as {saved.relative_to(ROOT)}")
    if arguments.draw:
        draw(bench.curves)


def _wanted(arguments: argparse.Namespace) -> list[str]:
    names: list[str] = arguments.only or []
    return [
        one.name
        for one in CASES.values()
        if (one.name in names or ((not names or one.group in names) and (one.quick or not arguments.quick)))
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    groups = {one.group for one in CASES.values() if one.group}
    parser.add_argument(
        "--only", action="append", metavar="CASE", choices={*CASES, *groups}, help="a case or a group; may be repeated"
    )
    parser.add_argument("--draw", action="store_true", help="draw the plots of the documentation from this run")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter slices, no large queues")
    parser.add_argument("--pg", default=os.environ.get("PG") or "auto", help="debian or embedded")
    parser.add_argument("--minutes", type=float, help="how long the snapshot is held (5; quick 1/3)")
    parser.add_argument("--seconds", type=float, help="length of a slice (2; quick 1)")
    parser.add_argument("--rounds", type=int, help="turns of each peer (5; quick 3)")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
