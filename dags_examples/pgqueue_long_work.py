"""Ships orders in steps: a task that is killed between two of them, or retried, charges nobody a second time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Success
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator

with DAG("pgqueue_long_work", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    publish = PgQueuePublishOperator(
        task_id="publish",
        queue_name="shipping",
        messages=[{"order_id": 1, "parcels": 2}, {"order_id": 2, "parcels": 1}],
    )

    def charge(message: Message) -> dict[str, Any]:
        """Stand for a payment, which returns its receipt."""
        return {"receipt": f"receipt of order {message.body['order_id']}"}

    def label(number: int) -> str:
        """Stand for a label that a carrier prints."""
        return f"parcel {number}"

    @task.pgqueue(queue_name="shipping", lease_for=timedelta(minutes=1), retries=2)
    def ship(message: Message) -> Success:
        """Do each step once, however often the message is delivered."""
        receipt = message.step("charge", lambda: charge(message))["receipt"]
        parcels = range(1, message.body["parcels"] + 1)
        labels = [message.step(f"label {number}", lambda number=number: label(number)) for number in parcels]
        return Success(output={"receipt": receipt, "labels": labels})

    publish >> ship()
