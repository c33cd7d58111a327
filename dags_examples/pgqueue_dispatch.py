"""Starts a DAG run for each order that waits: the message is finished when its run is.

`pgqueue_dispatch` waits for messages without a worker slot and starts runs of `pgqueue_pack_order`, at most four at a
time. A run that succeeds archives its message; one that fails has it delivered again, to another run.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_pgqueue.dispatch import get_messages
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator

with DAG(
    "pgqueue_dispatch",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),  # without one, Airflow makes a single run
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dispatch:
    PgQueueDispatchOperator(
        task_id="dispatch",
        queue_name="packing",
        trigger_dag_id="pgqueue_pack_order",
        max_open=4,
        wait_for_messages=True,
        retries=3,
    )

with DAG("pgqueue_pack_order", schedule=None, max_active_runs=4, tags=["pgqueue"], doc_md=__doc__) as pack_order:

    @task
    def reserve() -> int:
        """Any task of the run gets its messages."""
        (message,) = get_messages(get_current_context())
        return int(message.body["order_id"])

    @task
    def ship(order_id: int) -> str:
        """The last task: when it has succeeded, the run has, and the message is archived."""
        return f"order {order_id} is on its way"

    ship(reserve())
