"""Publishes reports of a megabyte, reads them, and removes the body of each after its message.

The extra of the connection says where bodies are kept, for example `{"bodies_at": "s3://aws_default@bucket/bodies"}`.
Without it they are kept in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Success
from airflow_provider_pgqueue.operators.upkeep import PgQueueCleanBodiesOperator

with DAG("pgqueue_large_bodies", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:

    @task.pgqueue.publish(queue_name="reports")
    def publish() -> Iterator[dict[str, Any]]:
        """Write three reports."""
        for number in range(3):
            yield {"report": number, "lines": [f"line {line} of the report" for line in range(35_000)]}

    @task.pgqueue(queue_name="reports", batch_size=10)
    def read(message: Message) -> Success:
        """Count the lines of a report."""
        return Success(output={"lines": len(message.body["lines"])})

    publish() >> read()

# A report stays as long as the archive keeps its message: the retention of the queue.
with DAG(
    "pgqueue_clean_bodies",
    schedule="@daily",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["pgqueue"],
    doc_md=__doc__,
) as clean:
    PgQueueCleanBodiesOperator(task_id="clean")
