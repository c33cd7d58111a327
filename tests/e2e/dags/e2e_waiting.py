"""DAGs that the end-to-end tests drive: waiting tasks of every kind."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor

RACES = 24


def handle(message: Message) -> None:
    """Do nothing: returning is success."""


with DAG("e2e_sensor", schedule=None) as sensor:
    PgQueueMessageSensor(task_id="wait", queue_name="e2e_sensor")

with DAG("e2e_many", schedule=None, max_active_tasks=300) as many:
    PgQueueMessageSensor.partial(task_id="wait", queue_name="e2e_many").expand(min_messages=[1] * 200)

with DAG("e2e_race", schedule=None, max_active_tasks=30) as race:

    @task
    def publish(number: int) -> str:
        """Publish to a queue of its own, so that it is ready at some moment while the sensor starts and waits."""
        queue_name = f"e2e_race_{number}"
        hook = PgQueueHook()
        hook.create_queue(queue_name)
        hook.publish(queue_name, {"number": number}, delay=timedelta(seconds=1.5 + number * 0.3))
        return queue_name

    PgQueueMessageSensor.partial(task_id="wait", retries=0).expand(queue_name=publish.expand(number=list(range(RACES))))

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

with DAG("e2e_hostile", schedule=None) as hostile:
    wait = PgQueueMessageSensor(task_id="wait", queue_name="e2e_hostile")
    wait >> PgQueueConsumeOperator(task_id="consume", queue_name="e2e_hostile", apply_function=handle)
