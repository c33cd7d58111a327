"""Requeues at night what failed in the last week: slowly, and only if the first ten do not die again."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator

with DAG(
    "pgqueue_reprocess_nightly",
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:
    PgQueueRequeueOperator(
        task_id="requeue",
        queue_name="packing",
        results=["failed", "lock_expired"],
        since="{{ dag_run.run_after - macros.timedelta(days=7) }}",
        max_requeues=3,
        max_messages=10_000,
        max_per_second=20,
        canary=10,
        stop_when_failing=20,
    )
