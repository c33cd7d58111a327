"""DAGs that the end-to-end tests drive: waiting tasks of every kind."""

from __future__ import annotations

import time
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pgqueue.core import Message
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator, PgQueuePublishQueryOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor


def handle(message: Message) -> None:
    """Do nothing: returning is success."""


with DAG("e2e_sensor", schedule=None) as sensor:

    @task
    def read(ready: int) -> int:
        """Read a value of the notification as the next task gets it."""
        return ready

    read(PgQueueMessageSensor(task_id="wait", queue_name="e2e_sensor").output["ready"])

with DAG("e2e_begin", schedule=None):

    @task(task_id="read")
    def read_all(notification: dict[str, Any]) -> dict[str, Any]:
        """Read all of the notification."""
        return notification

    read_all(PgQueueMessageSensor(task_id="wait", queue_name="e2e_begin").output)

with DAG("e2e_nowhere", schedule=None):
    PgQueueMessageSensor(task_id="wait", queue_name="e2e_nowhere", pgqueue_conn_id="nowhere", retries=0)

with DAG("e2e_many", schedule=None) as many:
    PgQueueMessageSensor.partial(task_id="wait", queue_name="e2e_many").expand(min_messages=[1] * 2)

with DAG("e2e_race", schedule=None, max_active_tasks=30) as race:
    PgQueueMessageSensor.partial(task_id="wait", retries=0).expand(
        queue_name=[f"e2e_race_{number}" for number in range(12)]
    )

with DAG("e2e_race_outlets", schedule=None, max_active_tasks=30) as race_outlets:
    PgQueueMessageSensor.partial(task_id="wait", retries=0, outlets=[Asset("e2e_race_outlets")]).expand(
        queue_name=[f"e2e_race_outlets_{number}" for number in range(12)]
    )

burst_waiting = Asset(
    "e2e_burst",
    watchers=[AssetWatcher(name="burst", trigger=MessageQueueTrigger(scheme="pgqueue", queue_name="e2e_burst"))],
)
with DAG("e2e_burst", schedule=[burst_waiting]) as burst:
    PgQueueConsumeOperator(task_id="consume", queue_name="e2e_burst", apply_function=handle)

with DAG("e2e_consume_waiting", schedule=None) as consume_waiting:
    PgQueueConsumeOperator(
        task_id="consume", queue_name="e2e_consume", apply_function=handle, wait_for_messages=True, retries=2
    )

with DAG("e2e_outlets", schedule=None) as outlets:
    PgQueueMessageSensor(task_id="wait", queue_name="e2e_outlets", outlets=[Asset("e2e_outlets_arrived")])

with DAG("e2e_after_outlets", schedule=[Asset("e2e_outlets_arrived")]) as after_outlets:
    PgQueuePublishOperator(task_id="publish", queue_name="e2e_outlets", message="the asset was told")


@task
def two_bodies() -> list[Any]:
    """Return bodies, of which one looks like a template."""
    return [{"n": 1}, "{{ 7*7 }}"]


with DAG("e2e_publish", schedule=None) as publishing:
    PgQueuePublishOperator(task_id="bodies", queue_name="e2e_publish", messages=two_bodies())
    PgQueuePublishQueryOperator(task_id="rows", queue_name="e2e_publish", sql="e2e_rows.sql")
    PgQueuePublishQueryOperator.partial(task_id="mapped", queue_name="e2e_publish").expand(sql=["e2e_rows.sql"])


def hang(message: Message) -> None:
    """Take an hour."""
    time.sleep(3600)


with DAG("e2e_hang", schedule=None) as hanging:
    PgQueueConsumeOperator(task_id="consume", queue_name="e2e_hang", apply_function=hang, retries=0)
