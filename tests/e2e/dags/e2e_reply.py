"""DAGs that the end-to-end tests drive: tasks that wait for what becomes of messages."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor

with DAG("e2e_ask", schedule=None, params={"secret": "pear"}) as ask:
    told = PgQueuePublishOperator.partial(task_id="tell", queue_name="e2e_questions").expand(message=[1, 2])
    PgQueueOutcomeSensor(task_id="hear", ids=told.output, poll_interval=1.0)
    asked = PgQueuePublishOperator(
        task_id="ask", queue_name="e2e_questions", message={"secret": "{{ params.secret }}"}, reference="{{ run_id }}"
    )
    finished = PgQueueOutcomeSensor(
        task_id="finished", reference="{{ run_id }}", expected=1, fail_on="dead", poll_interval=1.0
    )
    asked >> finished

# Paused, or the scheduler would run its tasks, too.
with DAG("e2e_in_line", schedule=None, is_paused_upon_creation=True) as in_line:

    @task
    def use(counts: dict[str, Any]) -> None:
        """Print the counts for the test."""
        print("COUNTED", counts["success"], counts["failed"])

    asked = PgQueuePublishOperator(task_id="ask", queue_name="e2e_in_line", messages=[1, 2])
    use(PgQueueOutcomeSensor(task_id="hear", ids=asked.output, poll_interval=0.5, retries=0).output)

with DAG("e2e_cleared", schedule=None):
    PgQueuePublishOperator(task_id="publish", queue_name="e2e_cleared", message={"order_id": 7})
