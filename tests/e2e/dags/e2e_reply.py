"""DAGs that the end-to-end tests drive: tasks that wait for what becomes of messages."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator, PgQueueRequestOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor

with DAG("e2e_ask", schedule=None, params={"secret": "pear"}) as ask:
    PgQueueRequestOperator(
        task_id="ask",
        queue_name="e2e_questions",
        message={"secret": "{{ params.secret }}"},
        poll_interval=600.0,
    )
    tell = PgQueuePublishOperator(
        task_id="tell", queue_name="e2e_questions", message={"secret": "{{ params.secret }}"}, headers={"awaited": True}
    )
    PgQueueOutcomeSensor(task_id="hear", message_id=tell.output, poll_interval=600.0)

with DAG("e2e_cleared", schedule=None):
    PgQueuePublishOperator(task_id="publish", queue_name="e2e_cleared", message={"order_id": 7})
