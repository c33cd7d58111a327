"""The servers, the Airflow and the records of its triggers, from which the cases measure it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import psycopg

from airflow_provider_pgqueue.core import install, run, verbs
from benchmarks.triggerer.pair import Pair
from tools import ROOT, STATE
from tools.airflow import Stack
from tools.postgres import Cluster

QUEUES: Final = 100
WAITERS: Final = 10  # sensors of each queue
_HERE: Final = Path(__file__).parent
Connection = psycopg.Connection[Any]


@dataclass
class Bench:
    """The servers, the Airflow, and the records of its triggers."""

    pair: Pair
    metadata: Cluster
    stack: Stack
    notes: Path
    seconds: float

    def add_row(self, *cells: str) -> None:
        """Print a line of a table."""
        print(f"| {' | '.join(cells)} |", flush=True)

    @contextmanager
    def queue(self) -> Iterator[Connection]:
        """Give a session to the queue."""
        with psycopg.connect(self.pair.dsn("queue"), autocommit=True) as conn:
            yield conn

    def fired(self, queue_name: str, since: float) -> list[float]:
        """Return when triggers of a queue fired after a time."""
        lines = self.notes.read_text().splitlines()
        moments = [float(line.split()[-1]) for line in lines if line.startswith(f"fired {queue_name} ")]
        return [moment for moment in moments if moment >= since]

    def late(self, since: float) -> tuple[float, float]:
        """Return how late the loop was in the worst time since then, and in the median."""
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


def wait(poll: Callable[[], Any], what: str, timeout: float = 300) -> float:
    """Wait until `poll` returns a true value, and return the seconds that it took."""
    began_at = time.monotonic()
    while not poll():
        if time.monotonic() - began_at > timeout:
            raise TimeoutError(f"no {what} within {timeout:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began_at


def ended(bench: Bench, queues: range) -> dict[int, list[float]]:
    """Wait for the ends of all tasks of some queues, and return these times by queue."""
    places = [place for place in range(1000) if place % QUEUES in queues]
    query = (
        "SELECT map_index, extract(epoch FROM end_date)::float FROM task_instance"
        " WHERE dag_id = 'bench_sensors' AND state = 'success' AND map_index = ANY (%s)"
    )
    with psycopg.connect(bench.stack.metadata, autocommit=True) as conn:
        wait(lambda: len(conn.execute(query, [places]).fetchall()) == len(places), "tasks that ended")
        found: dict[int, list[float]] = {}
        for place, moment in conn.execute(query, [places]):
            found.setdefault(place % QUEUES, []).append(moment)
    return found


@contextmanager
def benched(seconds: float) -> Iterator[Bench]:
    """Start two servers and a triggerer that waits for nothing yet."""
    place = STATE / "bench-airflow"
    shutil.rmtree(place, ignore_errors=True)
    pair = Pair(place / "queue")
    metadata = Cluster(place / "metadata", durable=False, cron_database="postgres")
    stack = None
    try:
        pair.primary.start()
        metadata.start()
        dsn = pair.primary.create_database("queue")
        with psycopg.connect(dsn, autocommit=True) as conn:
            install(conn, cron=False)
            for number in range(QUEUES):
                run(conn, verbs.create_queue(f"wait_{number}"))
                run(conn, verbs.create_queue(f"watch_{number}"))
        notes = place / "notes"
        notes.touch()
        stack = Stack(
            place / "airflow",
            metadata=metadata.create_database("airflow"),
            dags=_HERE / "dags",
            environment={
                "AIRFLOW_CONN_PGQUEUE_DEFAULT": json.dumps(pair.airflow_connection("queue")),
                "AIRFLOW__TRIGGERER__CAPACITY": "2000",
                "BENCH_NOTES": str(notes),
                "PYTHONPATH": str(ROOT),
            },
        )
        stack.prepare()
        yield Bench(pair, metadata, stack, notes, seconds)
    finally:
        if stack:
            stack.stop()
        pair.destroy()
        metadata.destroy()
