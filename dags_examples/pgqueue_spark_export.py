"""Each night: export closed partitions of the archive to Parquet, verify them, and drop them.

The task is done once a run: a retry, or a cleared task, continues where it was or returns the same summary.

The Airflow variable `pgqueue_export_target` says where to: a path, `s3://…` or `hdfs://…`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator

with DAG(
    "pgqueue_spark_export",
    schedule="30 2 * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["pgqueue", "spark"],
    doc_md=__doc__,
) as dag:
    PgQueueSparkOperator(
        task_id="export",
        pipeline="export",
        arguments={"target": "{{ var.value.get('pgqueue_export_target', '/var/lib/pgqueue/export') }}", "drop": True},
        driver_memory="1g",
    )
