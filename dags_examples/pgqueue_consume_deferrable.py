"""Waits for orders without holding a worker slot, then handles them one by one."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_pgqueue.core import Message, RejectMessage
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor


def handle_order(message: Message) -> None:
    """Handle one order; raising anything else than RejectMessage would deliver it again later."""
    if not isinstance(message.body, dict) or "order_id" not in message.body:
        raise RejectMessage("an order needs an order_id")


with DAG("pgqueue_consume_deferrable", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    wait = PgQueueMessageSensor(task_id="wait", queue_name="orders", timeout=timedelta(hours=12).total_seconds())
    consume = PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=handle_order)
    wait >> consume
