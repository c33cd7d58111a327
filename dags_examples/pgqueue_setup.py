"""Installs the schema and queues, and maintenance through pg_cron where available. Run it after every upgrade."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from flights import create_table

with DAG("pgqueue_setup", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    install = PgQueueSetupOperator(
        task_id="install",
        queues=[
            "alarms",
            "flights",
            "orders",
            "packing",
            "quotes",
            "reports",
            "wakeups",
        ],
    )
    install >> task(create_table)()
