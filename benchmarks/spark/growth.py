"""The cost of the pipelines as the data grows: time, CPU, and the memory of driver and executors."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from benchmarks.report import Limit, Line, Row
from benchmarks.spark import publish_program
from benchmarks.spark.data import PARTITION, fill_archive, write_flights
from benchmarks.spark.place import Place, execute, postmaster
from benchmarks.spark.usage import Usage, measured
from tools import ROOT
from tools.standalone import Standalone

PICTURE: Final = ROOT / "docs" / "images" / "spark-cost.svg"
_NOTHING: Final = "def nothing(messages):\n    pass\n"
_WAITING: Final = "SELECT count(*) FROM messages.message"
_ARCHIVED: Final = "SELECT count(*) FROM messages.message_archive"
_LABELS: Final = {"driver jvm": "driver, JVM", "executor jvm": "executor, JVM", "executor": "executor, Python"}
_STYLES: Final = {"driver jvm": "-", "executor jvm": "--", "executor": ":"}


class Growth:
    """Publishes, drains and exports on a cluster with two executors of one core and 512 MB each."""

    def __init__(self, place: Place, cluster: Standalone, dsn: str) -> None:
        self.place = place
        self.cluster = cluster
        self.dsn = dsn
        self.functions = cluster.home / "functions.py"
        self.functions.write_text(_NOTHING)

    def publish(self, rows: int) -> Usage:
        """Publish so many rows of Parquet."""
        source = self.place.folder("flights")
        write_flights(self.place.spark, source, rows)
        execute(self.dsn, "TRUNCATE messages.message, messages.message_archive")
        return self._submit(_WAITING, rows, str(source), "bench", application=publish_program.__file__)

    def drain(self, rows: int) -> Usage:
        """Drain what was published, with a function that does nothing."""
        execute(self.dsn, "VACUUM (ANALYZE) messages.message")
        return self._submit(_ARCHIVED, rows, "drain", "--queue", "bench", "--function", "functions:nothing")

    def export(self, rows: int) -> Usage:
        """Export so many archived messages, with manifest."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("TRUNCATE messages.message_archive")
            fill_archive(conn, rows)
        target = self.place.folder("export")
        return self._submit(_ARCHIVED, rows, "export", "--target", str(target), "--partitions", PARTITION)

    def _submit(self, count: str, rows: int, *arguments: str, **options: Any) -> Usage:
        execute(self.dsn, "CHECKPOINT")
        driver = self.cluster.submit("growth", *arguments, dsn=self.dsn, functions=self.functions, **options)
        trees = {"postgres": [postmaster(self.place.server)], "driver": [driver.pid], "executor": self.cluster.workers}
        with measured(trees) as usage:
            ended = driver.wait()
        done = execute(self.dsn, count)
        if ended or done != rows:
            raise RuntimeError(f"{arguments[0]} ended with {ended} and {done} of {rows} rows; see {self.cluster.home}")
        return usage


def growth(place: Place, sizes: list[int]) -> tuple[list[Line], dict[str, Any]]:
    """Run each pipeline with each number of rows, in processes of their own; lines for the table, and all figures."""
    home = place.folder("cluster")
    home.mkdir()
    cluster = Standalone(home)
    found: dict[str, dict[int, Usage]] = {"publish": {}, "drain": {}, "export": {}}
    try:
        cluster.start()
        with place.database("growth") as dsn:
            pipelines = Growth(place, cluster, dsn)
            for rows in sizes:
                for name, usages in found.items():
                    usages[rows] = getattr(pipelines, name)(rows)
    finally:
        cluster.stop()
    lines = [line for name, usages in found.items() for line in _lines(name, usages)]
    figures = {
        name: {rows: {"seconds": one.seconds, "cpu": dict(one.cpu), "peak": one.peak} for rows, one in usages.items()}
        for name, usages in found.items()
    }
    return lines, figures


def _lines(name: str, usages: dict[int, Usage]) -> list[Line]:
    costs: list[Line] = [
        Limit(f"{name} {rows:,}, with the start of Spark", [usage.seconds], "s", note=_cpu(usage))
        for rows, usage in usages.items()
    ]
    *_, before, last = usages
    memory: list[Line] = [
        Row(
            f"{name}, memory of {kind}",
            f"{before:,} rows",
            [usages[last].peak[kind]],
            [usages[before].peak[kind]],
            "MiB",
            1.1,
            at_least=False,
            note=f"{last:,} rows",
        )
        for kind in ("driver jvm", "driver", "executor jvm", "executor")
    ]
    return costs + memory


def _cpu(usage: Usage) -> str:
    return f"{usage.cpu_seconds:.0f} CPU s, {usage.cpu['postgres']:.0f} of them PostgreSQL"


def draw(figures: dict[str, Any]) -> None:
    """Draw seconds, CPU seconds and memory against the number of rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    seconds, cpu, memory = figure.subplots(1, 3)
    for color, (name, usages) in zip(("#0072B2", "#D55E00", "#009E73"), figures.items(), strict=True):
        rows = [int(number) / 1e6 for number in usages]
        seconds.plot(rows, [usage["seconds"] for usage in usages.values()], marker="o", color=color, label=name)
        cpu.plot(rows, [sum(usage["cpu"].values()) for usage in usages.values()], marker="o", color=color)
        for kind, style in _STYLES.items():
            memory.plot(rows, [usage["peak"][kind] for usage in usages.values()], style, marker=".", color=color)
    for kind, style in _STYLES.items():
        memory.plot([], [], style, color="gray", label=_LABELS[kind])
    titles = {"seconds, with the start of Spark": seconds, "CPU seconds": cpu, "peak memory, MiB": memory}
    for title, axes in titles.items():
        axes.set(title=title, xlabel="million rows", ylim=(0, None), xlim=(0, None))
        axes.grid(alpha=0.3)
    seconds.legend()
    memory.legend(loc="lower right")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})
