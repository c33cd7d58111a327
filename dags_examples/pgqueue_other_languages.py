"""Hands an order to programs in three languages, none of which knows Airflow, and reports what became of it.

`invoices` has workers in TypeScript and `labels` in Go, which lease and archive; a program with a client of PGMQ, in
whatever language, reads `receipts`. The tasks that wait for them do so without a worker slot.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor

QUEUES = ("invoices", "labels", "receipts")

with DAG(
    "pgqueue_other_languages",
    schedule=None,
    params={"lines": Param(3, type="integer", minimum=1, description="How many lines the order has")},
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:

    @task
    def create_queues() -> None:
        """A queue that exists is not changed."""
        for queue_name in QUEUES:
            PgQueueHook().run(verbs.create_queue(queue_name))

    def lines() -> list[dict[str, Any]]:
        """Return a message for each line of the order."""
        return [{"line": number} for number in range(get_current_context()["params"]["lines"])]

    @task
    def report(ended: list[dict[str, int]]) -> dict[str, int]:
        """Return how many messages of each queue ended well. The others are dead, and wait for a decision."""
        return {queue_name: counts["success"] for queue_name, counts in zip(QUEUES, ended, strict=True)}

    created, ended = create_queues(), []
    for queue_name in QUEUES:
        publish = PgQueuePublishOperator(task_id=f"publish_{queue_name}", queue_name=queue_name, messages=lines)
        finished = PgQueueOutcomeSensor(task_id=f"{queue_name}_finished", ids=publish.output, timeout=3600)
        created >> publish
        ended.append(finished.output)
    report(ended)  # type: ignore[arg-type]
