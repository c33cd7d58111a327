"""The case that measures what waiting costs: a thousand deferred tasks of Airflow while nothing happens."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, case
from benchmarks.peer import scalar
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Limit, Line
from tools import ROOT, STATE, SetupError

_TASKS: Final = 1000
_QUEUES: Final = 100
_TRIGGER: Final = "airflow_provider_pgqueue.triggers.message.PgQueueMessageTrigger"
_ARGUMENTS: Final = '{"queue_name": "idle_{}", "end_task": true}'
_SETTLE: Final = 10  # seconds after the last has begun to wait
# The triggers need Airflow, which the environment of the peers does not have.
_PYTHON: Final = Path(os.environ.get("AIRFLOW_PYTHON") or ROOT / ".venv" / "bin" / "python")


def _find_airflow() -> None:
    if not _PYTHON.exists():
        raise SetupError(f"{_PYTHON} with Airflow is not there: run `make setup`, or name one in AIRFLOW_PYTHON")


@case(
    "idle",
    "1,000 waiting tasks in one triggerer: sessions, and statements in a minute",
    quick=False,
    check=_find_airflow,
)
def idle(bench: Bench) -> list[Line]:
    seconds = 60
    with bench.server.database("idle", PGQUEUE.name, PGQUEUE.install) as name:
        with bench.server.connect(name) as conn:
            for number in range(_QUEUES):
                conn.execute("SELECT messages.create_queue(%s)", [f"idle_{number}"])
        bench.server.set_database(name, "log_statement", "all")
        with _waiting(bench.server.dsn(name)):
            log = bench.server.directory / "server.log"
            start = log.stat().st_size
            most = 0
            for _ in range(seconds // 5):
                time.sleep(5)
                most = max(most, _sessions(bench, name))
            with log.open("rb") as lines:
                lines.seek(start)
                statements = len(re.findall(rf" {name} LOG: +(statement|execute )", lines.read().decode()))
    note = f"{_TASKS:,} triggers on {_QUEUES} queues"
    return [
        Limit("idle, sessions", [most], "", 1, note),
        Limit("idle, statements a minute", [statements * 60 / seconds], "", 4, note),
    ]


def _sessions(bench: Bench, database: str) -> int:
    with bench.server.connect("postgres") as conn:
        return int(scalar(conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [database]))


@contextmanager
def _waiting(dsn: str) -> Iterator[None]:
    """Let a process of Airflow's environment wait with so many triggers."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_HOME": str(STATE / "bench" / "airflow-home"),
        "AIRFLOW_CONN_PGQUEUE_DEFAULT": dsn,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    process = subprocess.Popen(
        [_PYTHON, "-m", "benchmarks.brokers.waiters", _TRIGGER, _ARGUMENTS, str(_TASKS), str(_QUEUES)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        if not any(line == "ready\n" for line in process.stdout or ()):
            raise RuntimeError("the triggers ended before they waited")
        time.sleep(_SETTLE)
        yield
    finally:
        process.kill()
        process.wait()
