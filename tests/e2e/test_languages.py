"""A DAG whose messages are handled by programs that know no Airflow, each as its page has it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core.pgmq import install_names
from tests.e2e.conftest import PATIENCE, states_of_tasks, until, wait_for_run
from tests.pgmq.conftest import python_client  # noqa: F401
from tests.workers.test_workers import go, typescript
from tools.airflow import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.npm, pytest.mark.debian]
Connection = psycopg.Connection[Any]
READER = Path(__file__).parents[1] / "pgmq" / "clients" / "python_reader.py"
QUEUES = ("invoices", "labels", "receipts")


@contextmanager
def running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        yield
    finally:
        assert process.poll() is None, f"{command[0]} ended"
        process.terminate()
        process.wait(60)


def test_the_example_hands_an_order_to_workers_in_three_languages(
    stack: Stack,
    queue_conn: Connection,
    python_client: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    install_names(queue_conn)
    info = queue_conn.info
    place = {"PGHOST": info.host, "PGPORT": str(info.port), "PGDATABASE": info.dbname, "PGUSER": info.user}
    folders = [tmp_path / name for name in QUEUES]
    for folder in folders:
        folder.mkdir()
    commands = [
        [*typescript(folders[0])[:-1], "invoices", "60"],
        [*go(folders[1])[:-1], "labels", "60s"],
        [str(python_client), str(READER), "receipts", *place.values()],
    ]
    dag_id = "pgqueue_other_languages"
    stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger(dag_id)

    def waiting() -> list[str]:
        return [task_id for task_id, state in states_of_tasks(stack, dag_id, run_id) if state == "deferred"]

    until(lambda: len(waiting()) == len(QUEUES), timeout=PATIENCE, what="three tasks that wait", tell=waiting)
    with ExitStack() as workers:
        for command, folder in zip(commands, folders, strict=True):
            workers.enter_context(running(command, folder, os.environ | place | {"PGSSLMODE": "disable"}))
        assert wait_for_run(stack, dag_id, run_id) == "success"
    assert stack.client.xcom(dag_id, run_id, "report") == dict.fromkeys(QUEUES, 3)
    handled = "SELECT DISTINCT handled_by FROM messages.message_archive WHERE queue_name = %s"
    by = [queue_conn.execute(handled, [queue]).fetchall() for queue in ("invoices", "labels")]
    assert by == [[("worker.ts",)], [("worker.go",)]]
