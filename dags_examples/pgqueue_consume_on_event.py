"""Starts when flights wait in the queue: no schedule, no polling, and no worker slot held while there is nothing to do.

The notification says only that there is work. Four tasks lease it, batch by batch, until the queue is empty.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from flights import record_departures

flights_waiting = Asset(
    "pgqueue_flights_waiting",
    watchers=[AssetWatcher(name="flights", trigger=MessageQueueTrigger(scheme="pgqueue", queue_name="flights"))],
)

with DAG(
    "pgqueue_consume_on_event", schedule=[flights_waiting], max_active_runs=1, tags=["pgqueue"], doc_md=__doc__
) as dag:
    for number in range(1, 5):
        PgQueueConsumeOperator(
            task_id=f"consume_{number}",
            queue_name="flights",
            apply_function_batch=record_departures,
            batch_size=500,
            lease_for=timedelta(seconds=30),
            retries=3,
        )
