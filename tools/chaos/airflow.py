"""A real Airflow whose tasks and watchers use the queue through the proxy; its own database has no faults."""

from __future__ import annotations

import random
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools import ROOT, processes
from tools.airflow import Stack
from tools.chaos import dags
from tools.postgres import Cluster

SETTINGS: Final = {
    # What was killed has to be noticed while the run lasts, not after minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "15",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}
# What the processes of the LocalExecutor call themselves while they have a task; its own process is a child of one.
_TASK: Final = re.compile(rb"LocalExecutor: [0-9a-f]{8}-")


class Airflow:
    """The stack and the PostgreSQL of its metadata, both removed by `stop`.

    :param directory: where both keep their files.
    :param kind: which PostgreSQL, as for Cluster.
    """

    def __init__(self, directory: Path, *, kind: str | None = None) -> None:
        self.directory = directory
        self.cluster = Cluster(directory / "postgres", kind=kind, durable=False)
        self.stack = Stack(directory / "stack", metadata="", dags=Path(dags.__file__).parent, parallelism=4)

    def start(self, dsn: str, history: Path) -> None:
        """Start it with a connection to the queue; the handlers write to `history`."""
        self.cluster.start()
        self.stack.metadata = self.cluster.create_database("airflow")
        self.stack.environment = SETTINGS | {
            "AIRFLOW_CONN_PGQUEUE_DEFAULT": dsn,
            "PYTHONPATH": str(ROOT),
            dags.HISTORY: str(history),
        }
        self.stack.start()

    def stop(self) -> None:
        """End everything, and remove the database; the logs stay."""
        self.stack.stop(patience=5.0)
        self.cluster.destroy()

    def kill(self, component: str) -> None:
        """Kill a component, and start it again without waiting for it."""
        processes.end(lambda: self.stack.component_processes(component), patience=0)
        self.stack.start_component(component)

    def kill_a_task(self, chance: random.Random) -> bool:
        """Kill one of the processes in which tasks run, if there is one."""
        tasks = sorted(pid for pid in self.stack.processes() if _is_task(pid))
        if tasks:
            processes.send([chance.choice(tasks)], signal.SIGKILL)
        return bool(tasks)


def _is_task(pid: int) -> bool:
    with suppress(OSError):
        return _TASK.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    return False
