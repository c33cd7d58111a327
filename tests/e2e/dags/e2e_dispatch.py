"""DAGs that the end-to-end tests drive: dispatchers, and the runs that finish what those hand over."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_pgqueue.dispatch import get_messages
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator, PgQueueReconcileOperator

with DAG("e2e_handle", schedule=None, max_active_runs=8) as handle:

    @task
    def work() -> int:
        """Fail, or wait, while the file that the body names is there."""
        messages = get_messages(get_current_context())
        for message in messages:
            waited_for = Path(message.body.get("wait_while", "/nowhere"))
            if waited_for.exists():
                waited_for.write_text(str(os.getpid()))
            while waited_for.exists():
                time.sleep(0.1)
            failing = message.body.get("fail_while", "/nowhere")
            if Path(failing).exists():
                raise RuntimeError(f"as {failing} told")
        return len(messages)

    work()

with DAG("e2e_handle_mapped", schedule=None) as handle_mapped:

    @task
    def ids() -> list[int]:
        """Return the ids of the messages of the run."""
        return list(get_current_context()["dag_run"].conf["pgqueue"]["ids"])

    @task
    def one_of_them(id_: int) -> Any:
        """Read the body of one message."""
        (message,) = get_messages(get_current_context(), ids=[id_])
        return message.id == id_ and message.body["n"]

    one_of_them.expand(id_=ids())

with DAG("e2e_dispatch", schedule=None, max_active_runs=4) as dispatch:
    PgQueueDispatchOperator(
        task_id="dispatch", queue_name="{{ dag_run.conf['queue'] }}", trigger_dag_id="{{ dag_run.conf['dag'] }}"
    )

with DAG("e2e_dispatch_batches", schedule=None) as dispatch_batches:
    PgQueueDispatchOperator(
        task_id="dispatch", queue_name="e2e_mapped", trigger_dag_id="e2e_handle_mapped", batch_size=3
    )

with DAG(
    "e2e_dispatch_waiting",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    is_paused_upon_creation=True,
) as waiting:
    PgQueueDispatchOperator(
        task_id="dispatch",
        queue_name="e2e_few",
        trigger_dag_id="e2e_handle",
        max_open=2,
        wait_for_messages=True,
        retries=3,
    )

with DAG("e2e_reconcile", schedule=None) as reconcile:
    PgQueueReconcileOperator(task_id="reconcile", queue_name="e2e_missed")
