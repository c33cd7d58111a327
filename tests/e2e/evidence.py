"""What the output of a failed test says of the Airflow next to it: whoever reads it may have nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from tools.airflow import Stack

_LINES: Final = 40
_WIDTH: Final = 500  # of a line; what follows is mostly where it was logged
_TASKS: Final = 10
# Who asked for what, what tasks say that have a log of their own, and how often files are looked for.
_NOISE: Final = (
    "[http.access]",
    "[airflow.api_fastapi.execution_api.routes",
    "loc=task_runner.py",
    "[airflow.dag_processing.",
)
# Neither the conf of a run nor the result of a task, which may quote anything.
_STATES: Final = """
    SELECT r.dag_id, r.run_id, r.state, r.start_date::time(0), r.end_date::time(0),
           t.task_id, t.map_index, t.try_number, t.start_date::time(0), t.end_date::time(0), t.state
      FROM dag_run r LEFT JOIN task_instance t USING (dag_id, run_id)
     WHERE greatest(r.updated_at, t.updated_at) >= to_timestamp(%s) OR r.state IN ('queued', 'running')
     ORDER BY r.id, t.task_id, t.map_index
"""


def evidence(stack: Stack, since: float) -> list[tuple[str, str]]:
    """Return, by titles, the states of the runs and tasks since a time, and the ends of the logs.

    They are those of the tasks that did not succeed, and those of Airflow's components. Never the body of a message.
    """
    try:
        with psycopg.connect(stack.metadata) as metadata:
            states = metadata.execute(_STATES, [since]).fetchall()
        said = "\n".join(" ".join(map(str, row)) for row in states)
    except psycopg.Error as error:
        states, said = [], str(error)
    logs = [*_logs_of_tasks(stack, states, since), *sorted(stack.logs.glob("*.log"))]
    ends = [(f"Airflow: the end of {path.relative_to(stack.directory)}", _end(path)) for path in logs]
    return [("Airflow: runs and their tasks", said), *ends]


def _logs_of_tasks(stack: Stack, states: list[tuple[Any, ...]], since: float) -> list[Path]:
    runs = {(row[0], row[1]) for row in states if row[-1] != "success"}
    folders = [stack.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" for dag_id, run_id in runs]
    written = {path: path.stat().st_mtime for folder in folders for path in folder.rglob("*.log*")}
    latest = sorted((path for path, at in written.items() if at >= since), key=written.__getitem__)
    return latest[-_TASKS:]


def _end(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if not any(one in line for one in _NOISE)]
    return "\n".join(line[:_WIDTH] for line in lines[-_LINES:])
