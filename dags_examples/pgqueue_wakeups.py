"""The smallest event-driven consumer: one task that archives what arrives in queue `wakeups`."""

from __future__ import annotations

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.core import Message
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator


def handle(message: Message) -> None:
    """Do nothing: returning is success."""


wakeups = Asset(
    "pgqueue_wakeups",
    watchers=[AssetWatcher(name="wakeups", trigger=MessageQueueTrigger(scheme="pgqueue", queue_name="wakeups"))],
)

with DAG("pgqueue_wakeups", schedule=[wakeups], tags=["pgqueue"], doc_md=__doc__) as dag:
    PgQueueConsumeOperator(task_id="consume", queue_name="wakeups", apply_function=handle)
