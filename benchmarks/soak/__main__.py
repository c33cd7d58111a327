"""Runs all parts at half of what they can do for hours, and prints and draws what grows.

A publisher and a worker carry the load; a real Airflow consumes a watched queue and dispatches another; the Queues page
is loaded every five seconds, and maintenance runs every minute. Every ten minutes a session holds a snapshot for two
minutes, which stands for a daily dump or a long report. The archive, which keeps everything, is exported four times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import psutil
import psycopg

from airflow_provider_pgqueue.core import install, run, verbs
from airflow_provider_pgqueue.core.maintenance import run_maintenance
from benchmarks.soak import NOTES
from tools import ROOT, STATE, run_main
from tools.airflow import Stack
from tools.chaos.airflow import SETTINGS
from tools.failover import dags
from tools.postgres import Cluster

SAMPLES: Final = 120
CALIBRATION: Final = 15.0  # seconds at full load
_COMMAND: Final = (sys.executable, "-m", "airflow_provider_pgqueue.cli")
_SIZES: Final = """
    SELECT sum(pg_total_relation_size(relid)) FILTER (WHERE relname NOT LIKE '%%archive%%') / 2^20,
           sum(pg_total_relation_size(relid)) FILTER (WHERE relname LIKE '%%archive%%') / 2^20,
           sum(n_dead_tup) FILTER (WHERE relname NOT LIKE '%%archive%%'),
           (SELECT count(*) FROM messages.message WHERE queue_name = 'load')
      FROM pg_stat_user_tables WHERE schemaname = 'messages'
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at one time; memory is the unique set size of a process."""

    minutes: float
    per_second: float
    p50_ms: float
    p99_ms: float
    waiting: int
    worker_mb: float
    triggerer_mb: float
    page_mb: float
    page_ms: float
    queue_mb: float
    archive_mb: float
    dead_rows: int
    snapshot: bool


class Soak:
    """The servers, the programs and their records."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self.directory, self.seconds = directory, seconds
        self.period = min(600.0, seconds / 3)  # between two snapshots
        self.notes = directory / "ages"
        self.stopping = threading.Event()
        self.held = threading.Event()
        self.failures: list[BaseException] = []
        self.loads: list[float] = []
        self.refusals: list[str] = []
        self.published = self.rate = 0
        self.cluster = Cluster(directory / "postgres", cron_database="postgres")
        self.stack = Stack(directory / "airflow", metadata="", dags=Path(dags.__file__).parent, parallelism=2)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start everything and end it again."""
        with ExitStack() as meanwhile:
            meanwhile.callback(self.cluster.destroy)
            self.cluster.start()
            self.dsn = self.cluster.create_database("queue")
            with self.connect() as conn:
                install(conn, cron=False)
                conn.execute("CREATE TABLE public.delivery (queue_name text, id bigint, run_id text)")
                for queue in ("load", "watched", "dispatched"):
                    run(conn, verbs.create_queue(queue))
            self.stack.metadata = self.cluster.create_database("airflow")
            self.stack.environment = SETTINGS | {"AIRFLOW_CONN_PGQUEUE_DEFAULT": self.dsn, "PYTHONPATH": str(ROOT)}
            meanwhile.callback(self.stack.stop, patience=5.0)
            self.stack.start(timeout=300.0)
            self.worker = meanwhile.enter_context(self.program("worker", "load", "benchmarks.soak.handler:handle"))
            self.page = meanwhile.enter_context(self.program("web", "--read-only"))
            yield

    def connect(self) -> psycopg.Connection[Any]:
        """Open a session to the queue."""
        return psycopg.connect(self.dsn, autocommit=True)

    @contextmanager
    def program(self, *arguments: str) -> Iterator[psutil.Popen]:
        """Run a command of ours until the block ends."""
        environment = os.environ | {"PGQUEUE_DSN": self.dsn, NOTES: str(self.notes)}
        log = self.directory / f"{arguments[0]}.log"
        with log.open("w") as output:
            process = psutil.Popen([*_COMMAND, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(30)

    @contextmanager
    def doing(self, **works: tuple[float, Callable[[], object]]) -> Iterator[None]:
        """Repeat each task at its interval, from start to start, until the block ends."""

        def repeat(every: float, work: Callable[[], object]) -> None:
            try:
                due = time.monotonic()
                while not self.stopping.wait(max(0.0, due - time.monotonic())):
                    due = max(due + every, time.monotonic())
                    work()
            except BaseException as error:
                self.failures.append(error)

        threads = [threading.Thread(target=repeat, args=work, name=name) for name, work in works.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()
            self.stopping.clear()

    def calibrate(self) -> None:
        """Publish as fast as the worker takes it, and set the rate to half of that."""
        with self.connect() as conn:
            until = time.monotonic() + CALIBRATION
            while time.monotonic() < until:
                waits = conn.execute("SELECT count(*) FROM messages.message WHERE queue_name = 'load'").fetchone()
                if waits and waits[0] < 2000:
                    self.publish(conn, 500)
            self.rate = max(10, round(self.published / CALIBRATION / 2))
        self.notes.write_text("")

    def publish(self, conn: psycopg.Connection[Any], number: int) -> None:
        """Publish so many messages to the queue of the worker."""
        now = time.time()
        bodies = [{"number": self.published + place, "at": now} for place in range(number)]
        run(conn, verbs.publish_batch("load", bodies))
        self.published += number

    def trickle(self) -> None:
        """Give Airflow a batch to consume, and one to dispatch."""
        with self.connect() as conn:
            for queue in ("watched", "dispatched"):
                run(conn, verbs.publish_batch(queue, range(dags.BATCH)))

    def maintenance(self) -> None:
        """Run maintenance once."""
        with self.connect() as conn:
            run_maintenance(conn)

    def hold(self) -> None:
        """Hold a snapshot for a fifth of the period, after as long without one."""
        if self.stopping.wait(self.period / 5):
            return
        with self.connect() as conn, conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT count(*) FROM messages.queue")
            self.held.set()
            self.stopping.wait(self.period / 5)
            self.held.clear()

    def export(self) -> None:
        """Export the whole archive so far."""
        with self.program("export", "--target", str(self.directory / "export"), "--until", "now") as process:
            if process.wait():
                raise RuntimeError(f"the export failed; see {self.directory / 'export.log'}")

    def poll(self) -> None:
        """Load the Queues page, and note how long it took, and why it was refused."""
        url = (self.directory / "web.log").read_text().split("http", 1)[1].split()[0]
        began = time.monotonic()
        try:
            urllib.request.urlopen(f"http{url}", timeout=30).read()
        except urllib.error.HTTPError as error:
            text = " ".join(re.sub("<[^>]*>", " ", error.read().decode().partition("<main")[2]).split())
            self.refusals.append(f"page: {error.code} {text}")
            print(self.refusals[-1], file=sys.stderr, flush=True)
        self.loads.append(1000 * (time.monotonic() - began))

    def sample(self, minutes: float, since: float, before: int) -> Sample:
        """Return the current figures, with the ages of messages since a time."""
        ages = [age for at, age in map(_numbers, self.notes.read_text().splitlines()) if at >= since]
        shares = quantiles(ages, n=100, method="inclusive") if len(ages) > 1 else [float("nan")] * 99
        # Its first process, which has the others as children.
        triggerer = [psutil.Process(pid) for pid in sorted(self.stack.component_processes("triggerer"))[:1]]
        with self.connect() as conn:
            row = conn.execute(_SIZES.encode()).fetchone()
        assert row
        queue_mb, archive_mb, dead_rows, waiting = row
        loads, self.loads = self.loads, []
        return Sample(
            minutes=minutes,
            per_second=(self.published - before) / max(0.001, time.time() - since),
            p50_ms=1000 * shares[49],
            p99_ms=1000 * shares[98],
            waiting=waiting,
            worker_mb=megabytes(self.worker),
            triggerer_mb=sum(map(megabytes, triggerer)),
            page_mb=megabytes(self.page),
            page_ms=max(loads, default=float("nan")),
            queue_mb=queue_mb,
            archive_mb=archive_mb,
            dead_rows=int(dead_rows),
            snapshot=self.held.is_set(),
        )

    def watch(self) -> list[Sample]:
        """Carry the load for as long as it lasts and return the samples."""
        with self.connect() as publisher:
            works = {
                "publish": (0.05, lambda: self.publish(publisher, max(1, self.rate // 20))),
                "trickle": (30.0, self.trickle),
                "maintenance": (60.0, self.maintenance),
                "hold": (self.period, self.hold),
                "export": (self.seconds / 4, self.export),
                "page": (5.0, self.poll),
            }
            samples: list[Sample] = []
            began = time.time()
            with self.doing(**works):
                for number in range(1, SAMPLES + 1):
                    since, before = time.time(), self.published
                    time.sleep(max(0.0, began + self.seconds * number / SAMPLES - time.time()))
                    samples.append(self.sample((time.time() - began) / 60, since, before))
                    print(json.dumps(asdict(samples[-1])), file=sys.stderr, flush=True)
                    if self.failures:
                        raise self.failures[0]
        return samples


def _numbers(line: str) -> tuple[float, float]:
    at, _, age = line.partition(" ")
    return float(at), float(age)


def megabytes(process: psutil.Process) -> float:
    """Return the memory that is a process's own, and that of its children."""
    found = float(process.memory_full_info().uss)
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found += child.memory_full_info().uss
    return found / 2**20


def table(samples: list[Sample]) -> list[str]:
    """Return a table with the medians of twenty slices, and of the last quarter compared with the second."""
    names = [field.name for field in fields(Sample) if field.name not in ("minutes", "snapshot")]
    rows = ["| minutes | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    size = max(1, len(samples) // 20)
    slices = [samples[first : first + size] for first in range(0, len(samples), size)]
    for part in slices:
        values = [f"{median(getattr(one, name) for one in part):,.1f}" for name in names]
        rows.append(f"| {part[-1].minutes:.1f} | {' | '.join(values)} |")
    quarter = max(1, len(samples) // 4)
    first, last = samples[quarter : 2 * quarter], samples[-quarter:]
    changes = [_change([getattr(one, name) for one in first], [getattr(one, name) for one in last]) for name in names]
    return [*rows, f"| last quarter / second | {' | '.join(changes)} |"]


def _change(first: list[float], last: list[float]) -> str:
    return f"{median(last) / median(first):.2f}" if median(first) else "-"


def draw(samples: list[Sample], file: Path) -> None:
    """Draw memory, latency, sizes and dead rows over time, with the held snapshots."""
    from matplotlib.figure import Figure

    panels: Mapping[str, tuple[str, ...]] = {
        "memory, MB": ("worker_mb", "triggerer_mb", "page_mb"),
        "age at the handler, ms": ("p50_ms", "p99_ms"),
        "the page, ms": ("page_ms",),
        "tables, MB": ("queue_mb", "archive_mb"),
        "dead rows of the queue": ("dead_rows",),
    }
    figure = Figure(figsize=(8, 12), layout="constrained")
    minutes = [one.minutes for one in samples]
    for axes, (label, names) in zip(figure.subplots(len(panels), sharex=True), panels.items(), strict=True):
        for name in names:
            axes.plot(minutes, [getattr(one, name) for one in samples], label=name.rpartition("_")[0])
        axes.fill_between(
            minutes, 0, 1, [one.snapshot for one in samples], transform=axes.get_xaxis_transform(), color="0.9"
        )
        axes.set(ylabel=label, ylim=(0, None))
        axes.legend(loc="upper left")
    axes.set(xlabel="minutes; a snapshot is held where it is grey")
    figure.savefig(file)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, help="messages a second; half of what was measured by default")
    parser.add_argument("--directory", type=Path, default=STATE / "soak")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.directory, ignore_errors=True)
    arguments.directory.mkdir(parents=True)
    soak = Soak(arguments.directory, 3600 * arguments.hours)
    with soak.running():
        soak.calibrate()
        soak.rate = arguments.rate or soak.rate
        print(f"{soak.rate:,} messages a second for {arguments.hours} hours", flush=True)
        samples = soak.watch()
    (arguments.directory / "samples.json").write_text(json.dumps([asdict(one) for one in samples]))
    print("\n".join(table(samples)))
    print(f"the page was refused {len(soak.refusals)} times")
    draw(samples, arguments.directory / "soak.svg")
    print(arguments.directory / "soak.svg")


if __name__ == "__main__":
    run_main(main)
