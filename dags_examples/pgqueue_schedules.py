"""Lets the database publish an order every night, whether Airflow runs then or not. Run it again after a change."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.schedule import PgQueueScheduleOperator

with DAG("pgqueue_schedules", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    PgQueueScheduleOperator(
        task_id="nightly_order",
        schedule_name="nightly_order",
        cron="0 3 * * *",
        time_zone="Europe/Berlin",
        queue_name="orders",
        message={"order_id": 0, "kind": "nightly"},
    )
