"""Runs one triggerer of a real Airflow with a thousand deferred sensors and a hundred watchers, and prints a table.

The run of the sensors and the rows of their triggers are made in the metadata, as workers would, because a thousand
workers would take this machine ten minutes. All else is Airflow: the rows are taken by its triggerer, and the sensors
end there. The queue and the metadata are on servers of their own, so that one can be restarted alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import psycopg

from airflow_provider_pgqueue.core import install, run, verbs
from tools import ROOT, STATE
from tools.airflow import Stack
from tools.postgres import Cluster

_HERE: Final = Path(__file__).parent
_QUEUES: Final = 100
_WAITERS: Final = 10  # sensors of each queue
_WAKES: Final = 20  # queues that are woken in a phase
Connection = psycopg.Connection[Any]


@dataclass
class Bench:
    """The servers, the Airflow, and what its triggers wrote down."""

    cluster: Cluster
    metadata: Cluster
    stack: Stack
    notes: Path
    seconds: float
    lines: list[tuple[str, str]] = field(default_factory=list)

    def say(self, what: str, value: str) -> None:
        """Add a line to the table, and print it."""
        self.lines.append((what, value))
        print(f"| {what} | {value} |", flush=True)

    @contextmanager
    def queue(self) -> Iterator[Connection]:
        """Give a session to the queue."""
        with psycopg.connect(self.cluster.dsn("queue"), autocommit=True) as conn:
            yield conn

    def fired(self, queue_name: str, since: float) -> list[float]:
        """Return when triggers of a queue fired after a moment."""
        lines = self.notes.read_text().splitlines()
        moments = [float(line.split()[-1]) for line in lines if line.startswith(f"fired {queue_name} ")]
        return [moment for moment in moments if moment >= since]

    def late(self, since: float) -> tuple[float, float]:
        """Return how late the loop was in the worst moment since then, and in the median."""
        found = [line.split() for line in self.notes.read_text().splitlines() if line.startswith("late ")]
        some = [(float(worst), float(usual)) for _, worst, usual, moment in found if float(moment) > since + 1]
        return max(worst for worst, _ in some), median(usual for _, usual in some)

    def listeners(self) -> list[tuple[int, int]]:
        """Return backend and client port of each session of the triggerer to the queue."""
        with self.queue() as conn:
            return conn.execute(
                "SELECT pid, client_port FROM pg_stat_activity WHERE datname = 'queue' AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend' AND application_name LIKE 'pgqueue%'"
            ).fetchall()

    def runner(self) -> psutil.Process:
        """Return the process of the triggers: the one that listens."""
        ports = {port for _, port in self.listeners()}
        for pid in self.stack.component_processes("triggerer"):
            process = psutil.Process(pid)
            if any(one.laddr and one.laddr.port in ports for one in process.net_connections("tcp")):
                return process
        raise RuntimeError("no process of the triggerer listens")


def wait(look: Callable[[], Any], what: str, timeout: float = 300) -> float:
    """Wait until it is so, and return the seconds that took."""
    began_at = time.monotonic()
    while not look():
        if time.monotonic() - began_at > timeout:
            raise TimeoutError(f"no {what} within {timeout:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began_at


def wake(bench: Bench, conn: Connection, queues: range, pause: float) -> tuple[list[float], list[float]]:
    """Publish to one queue at a time; return the seconds to each ring, and to each end of a task."""
    rings: list[float] = []
    published: dict[int, float] = {}
    for number in queues:
        run(conn, verbs.publish(f"wait_{number}", 1))
        published[number] = time.time()
        time.sleep(pause)
    for number, moment in published.items():
        wait(lambda number=number, moment=moment: len(bench.fired(f"wait_{number}", moment - 1)) >= _WAITERS, "rings")
        rings += [fired - moment for fired in bench.fired(f"wait_{number}", moment - 1)]
    ended = _ended(bench, queues)
    return rings, [end - published[number] for number, ends in ended.items() for end in ends]


def _ended(bench: Bench, queues: range) -> dict[int, list[float]]:
    places = [place for place in range(1000) if place % _QUEUES in queues]
    query = (
        "SELECT map_index, extract(epoch FROM end_date)::float FROM task_instance"
        " WHERE dag_id = 'bench_sensors' AND state = 'success' AND map_index = ANY (%s)"
    )
    with psycopg.connect(bench.stack.metadata, autocommit=True) as conn:
        wait(lambda: len(conn.execute(query, [places]).fetchall()) == len(places), "tasks that ended")
        found: dict[int, list[float]] = {}
        for place, moment in conn.execute(query, [places]):
            found.setdefault(place % _QUEUES, []).append(moment)
    return found


def quantiles(values: list[float]) -> str:
    """Return median, 95th percentile and maximum."""
    ordered = sorted(values)
    middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    return f"p50 {middle:.3f} s, p95 {high:.3f} s, max {ordered[-1]:.3f} s"


def megabytes(process: psutil.Process) -> float:
    """Return the memory that is the process's own."""
    return float(process.memory_full_info().uss) / 2**20


def phase(bench: Bench, name: str, queues: range, load: Callable[[Connection], None] | None) -> None:
    """Measure the loop, the CPU and the sessions for a while, then how soon sensors wake."""
    process, began_at, most = bench.runner(), time.time(), 0
    before = sum(process.cpu_times()[:2])
    with bench.queue() as conn:
        until = time.monotonic() + bench.seconds
        while time.monotonic() < until:
            if load:
                load(conn)
            else:
                time.sleep(1)
            most = max(most, len(bench.listeners()))
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.time() - began_at)
        worst, usual = bench.late(began_at)
        rings, ends = wake(bench, conn, queues, 0.7 if load is None else 0.2)
    bench.say(f"{name}: sessions", str(most))
    bench.say(f"{name}: CPU of the process of the triggers", f"{100 * cpu:.1f} %")
    bench.say(f"{name}: delay of its loop", f"median {1000 * usual:.1f} ms, worst {1000 * worst:.0f} ms")
    bench.say(f"{name}: publish to ring, {len(rings)} sensors", quantiles(rings))
    bench.say(f"{name}: publish to the end of the task", quantiles(ends))


def publish_everywhere(conn: Connection) -> None:
    """Publish to each of the watched queues once a second."""
    for number in range(_QUEUES):
        run(conn, verbs.publish(f"watch_{number}", 1))
    time.sleep(0.5)


def recover(bench: Bench, what: str, number: int, fail: Callable[[Bench], None]) -> None:
    """Break something, publish to a queue for which ten sensors wait, and say when they fired and had ended."""
    fail(bench)
    moment = time.time()
    for _ in range(600):
        try:
            with bench.queue() as conn:
                run(conn, verbs.publish(f"wait_{number}", 1))
            break
        except psycopg.OperationalError:
            time.sleep(0.1)
    wait(lambda: len(bench.fired(f"wait_{number}", moment)) >= _WAITERS, "rings after a fault")
    last = max(bench.fired(f"wait_{number}", moment)) - moment
    ends = _ended(bench, range(number, number + 1))[number]
    bench.say(f"after {what}: the last of ten rings", f"{last:.1f} s")
    bench.say(f"after {what}: the last of ten tasks", f"{max(ends) - moment:.1f} s")


def kill_triggerer(bench: Bench) -> None:
    """Kill it as a crash does, and start it again at once, as a supervisor does."""
    bench.stack.kill("triggerer", signal.SIGKILL)
    wait(lambda: not bench.stack.component_processes("triggerer"), "end of the triggerer")
    bench.stack.start_component("triggerer")


def terminate_listener(bench: Bench) -> None:
    """End the session that listens."""
    with bench.queue() as conn:
        for pid, _ in bench.listeners():
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])


def restart_postgres(bench: Bench) -> None:
    """Restart the server of the queue."""
    bench.cluster.stop()
    bench.cluster.start()


@contextmanager
def benched(seconds: float) -> Iterator[Bench]:
    """Start two servers and a triggerer that waits for nothing yet."""
    place = STATE / "bench-airflow"
    shutil.rmtree(place, ignore_errors=True)
    cluster, metadata = (
        Cluster(place / name, durable=False, cron_database="postgres") for name in ("queue", "metadata")
    )
    stack = None
    try:
        cluster.start()
        metadata.start()
        dsn = cluster.create_database("queue")
        with psycopg.connect(dsn, autocommit=True) as conn:
            install(conn, cron=False)
            for number in range(_QUEUES):
                run(conn, verbs.create_queue(f"wait_{number}"))
                run(conn, verbs.create_queue(f"watch_{number}"))
        notes = place / "notes"
        notes.touch()
        stack = Stack(
            place / "airflow",
            metadata=metadata.create_database("airflow"),
            dags=_HERE / "dags",
            environment={
                "AIRFLOW_CONN_PGQUEUE_DEFAULT": dsn,
                "AIRFLOW__TRIGGERER__CAPACITY": "2000",
                "BENCH_NOTES": str(notes),
                "PYTHONPATH": str(ROOT),
            },
        )
        stack.prepare()
        yield Bench(cluster, metadata, stack, notes, seconds)
    finally:
        if stack:
            stack.stop()
        cluster.destroy()
        metadata.destroy()


def airflow(bench: Bench, *command: str) -> None:
    """Run a program in the environment of the Airflow."""
    subprocess.run([sys.executable, "-m", *command], env=bench.stack.env(), check=True, stdout=subprocess.DEVNULL)


def fill(bench: Bench) -> None:
    """Let the triggerer take the watchers and then the sensors, and say what that costs."""
    bench.stack.start_component("triggerer")
    airflow(bench, "airflow", "dags", "reserialize")
    wait(bench.listeners, "watchers that listen")
    wait(lambda: "late " in bench.notes.read_text(), "a loop that is measured")
    time.sleep(5)
    alone = megabytes(bench.runner())
    bench.say("memory of the process of the triggers with 100 watchers", f"{alone:.0f} MB")
    airflow(bench, "benchmarks.triggerer.defer")
    with psycopg.connect(bench.stack.metadata, autocommit=True) as conn:
        taken = "SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL"
        took = wait(lambda: conn.execute(taken).fetchone() == (1000 + _QUEUES + 1,), "triggers that were taken")
    bench.say("1,000 deferred sensors: taken by the triggerer within", f"{took:.1f} s")
    time.sleep(10)
    bench.say("memory with the sensors, too", f"{megabytes(bench.runner()):.0f} MB")


def measure(bench: Bench) -> None:
    """Measure how it waits, and how it recovers."""
    phase(bench, "idle", range(_WAKES), None)
    phase(bench, "busy", range(_WAKES, 2 * _WAKES), publish_everywhere)
    recover(bench, "a session that listens was ended", 50, terminate_listener)
    recover(bench, "a restart of PostgreSQL", 51, restart_postgres)
    recover(bench, "kill -9 of the triggerer", 52, kill_triggerer)
    log = (bench.stack.logs / "triggerer.log").read_text()
    bench.say("warnings of Airflow that the loop was blocked", str(log.count("async thread was blocked")))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.triggerer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long to be idle, and busy")
    seconds = parser.parse_args().seconds
    print(f"load: {os.getloadavg()[0]:.1f}\n\n| | |\n|---|---|")
    with benched(seconds) as bench:
        fill(bench)
        measure(bench)
    print(f"\nload: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
