"""Asks for a price through a queue, and waits for the answer without a worker slot: request and reply."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Rejected, Success
from airflow_provider_pgqueue.operators.publish import PgQueueRequestOperator

with DAG("pgqueue_request_reply", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:
    ask = PgQueueRequestOperator(
        task_id="ask",
        queue_name="quotes",
        message={"from": "FRA", "to": "LIS"},
        with_output=True,
        wait_timeout=timedelta(hours=1),
    )

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
        price: int = asked["outcomes"][0]["output"]["price"]
        return price

    quote()
    book(ask.output)
