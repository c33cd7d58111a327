"""Publishes failed and abandoned messages again on a schedule, each at most three times."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator

with DAG(
    "pgqueue_requeue_dead",
    schedule="* * * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:
    PgQueueRequeueOperator(
        task_id="requeue",
        queue_name="flights",
        results=["failed", "lock_expired"],
        max_requeues=3,
        retries=2,
    )
