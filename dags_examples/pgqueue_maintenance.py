"""Runs maintenance every minute where there is no pg_cron; where pg_cron runs it, the task is skipped."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator

with DAG(
    "pgqueue_maintenance",
    schedule="* * * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:
    PgQueueMaintenanceOperator(task_id="maintenance", skip_if_pg_cron=True, with_metrics=True)
