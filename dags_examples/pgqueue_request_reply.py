"""Asks for a price through a queue, waits without a worker slot until a consumer has replied, and uses the answer."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Rejected, Success, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor

with DAG("pgqueue_request_reply", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    ask = PgQueuePublishOperator(task_id="ask", queue_name="quotes", message={"from": "FRA", "to": "LIS"})
    finished = PgQueueOutcomeSensor(task_id="finished", ids=ask.output, fail_on="dead", timeout=3600)

    # The one who answers may be any consumer, in this DAG or another, or a worker without Airflow.
    @task.pgqueue(queue_name="quotes", max_messages=1, wait_for_messages=True)
    def quote(message: Message) -> Success | Rejected:
        """Answer with a price."""
        if message.body["from"] == message.body["to"]:
            return Rejected("nowhere to fly to")
        return Success(output={"price": 99})

    @task
    def book(asked: dict[str, Any]) -> int:
        """Use the answer."""
        # A later try of the task found the message of the first.
        id_ = asked["first_id"] or asked["duplicate_of"]
        (outcome,) = PgQueueHook().run(verbs.message_outcomes([id_], with_output=True))
        price: int = outcome.output["price"]
        return price

    quote()
    finished >> book(ask.output)  # type: ignore[arg-type]
