"""Runs one triggerer of a real Airflow with a thousand deferred sensors and a hundred watchers, and prints tables.

The run of the sensors and the rows of their triggers are made in the metadata, as workers would, because a thousand
workers would take this machine ten minutes. All else is Airflow: the rows are taken by its triggerer, and the sensors
end there. The queue and the metadata are on servers of their own, so that one can be restarted alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

import psutil
import psycopg

from airflow_provider_pgqueue.core import run, verbs
from benchmarks.triggerer.bench import QUEUES, WAITERS, Bench, Connection, benched, ended, wait
from benchmarks.triggerer.recovery import FAULTS, recover

_WAITING: Final = "waiting"
_WAKES: Final = 20  # queues that get a message in a phase


def wake(bench: Bench, conn: Connection, queues: range, pause: float) -> tuple[list[float], list[float]]:
    """Publish to one queue at a time; return the seconds to each notification, and to each end of a task."""
    notifications: list[float] = []
    published: dict[int, float] = {}
    for number in queues:
        run(conn, verbs.publish(f"wait_{number}", 1))
        published[number] = time.time()
        time.sleep(pause)
    for number, moment in published.items():
        wait(lambda number=number, moment=moment: len(bench.fired(f"wait_{number}", moment - 1)) >= WAITERS, "events")
        notifications += [fired - moment for fired in bench.fired(f"wait_{number}", moment - 1)]
    ends = ended(bench, queues)
    return notifications, [end - published[number] for number, found in ends.items() for end in found]


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
        notifications, ends = wake(bench, conn, queues, 0.7 if load is None else 0.2)
    bench.add_row(f"{name}: sessions", str(most))
    bench.add_row(f"{name}: CPU of the process of the triggers", f"{100 * cpu:.1f} %")
    bench.add_row(f"{name}: delay of its loop", f"median {1000 * usual:.1f} ms, worst {1000 * worst:.0f} ms")
    bench.add_row(f"{name}: publish to event, {len(notifications)} sensors", quantiles(notifications))
    bench.add_row(f"{name}: publish to the end of the task", quantiles(ends))


def publish_everywhere(conn: Connection) -> None:
    """Publish to each of the watched queues once a second."""
    for number in range(QUEUES):
        run(conn, verbs.publish(f"watch_{number}", 1))
    time.sleep(0.5)


def airflow(bench: Bench, *command: str) -> None:
    """Run a program in the environment of the Airflow."""
    subprocess.run([sys.executable, "-m", *command], env=bench.stack.env(), check=True, stdout=subprocess.DEVNULL)


def fill(bench: Bench) -> None:
    """Let the triggerer take the watchers and then the sensors, and print the cost."""
    bench.stack.start_component("triggerer")
    airflow(bench, "airflow", "dags", "reserialize")
    wait(bench.listeners, "watchers that listen")
    wait(lambda: "late " in bench.notes.read_text(), "a loop that is measured")
    time.sleep(5)
    alone = megabytes(bench.runner())
    bench.add_row("memory of the process of the triggers with 100 watchers", f"{alone:.0f} MB")
    airflow(bench, "benchmarks.triggerer.defer")
    with psycopg.connect(bench.stack.metadata, autocommit=True) as conn:
        taken = "SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL"
        took = wait(lambda: conn.execute(taken).fetchone() == (1000 + QUEUES + 1,), "triggers that were taken")
    bench.add_row("1,000 deferred sensors: taken by the triggerer within", f"{took:.1f} s")
    time.sleep(10)
    bench.add_row("memory with the sensors, too", f"{megabytes(bench.runner()):.0f} MB")


def wait_and_wake(bench: Bench) -> None:
    """Measure how it waits, idle and busy, and how soon sensors wake."""
    phase(bench, "idle", range(_WAKES), None)
    phase(bench, "busy", range(_WAKES, 2 * _WAKES), publish_everywhere)
    log = (bench.stack.logs / "triggerer.log").read_text()
    bench.add_row("warnings of Airflow that the loop was blocked", str(log.count("async thread was blocked")))


def recover_from(bench: Bench, faults: list[str], rounds: int) -> None:
    """Measure how it recovers from each of the faults."""
    print("\nSeconds from the fault, median (longest):\n")
    bench.add_row(
        "fault", "times", "the database takes a message", "the last of ten sensors fires", "the last task ended"
    )
    bench.add_row("---", "---", "---", "---", "---")
    for place, fault in enumerate(faults):
        first = 2 * _WAKES + place * rounds
        recover(bench, fault, range(first, first + rounds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.triggerer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long to be idle, and busy")
    parser.add_argument("--rounds", type=int, choices=range(1, 13), default=5, help="how often each fault is made")
    parser.add_argument("--only", nargs="+", choices=[_WAITING, *FAULTS], help="some parts only")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if not arguments.only or fault in arguments.only]
    print(f"load: {os.getloadavg()[0]:.1f}\n")
    with benched(arguments.seconds) as bench:
        bench.add_row("Airflow", version("apache-airflow"))
        bench.add_row("---", "---")
        fill(bench)
        if not arguments.only or _WAITING in arguments.only:
            wait_and_wake(bench)
        if faults:
            recover_from(bench, faults, arguments.rounds)
    print(f"\nload: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
