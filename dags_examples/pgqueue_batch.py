"""Prices a batch of orders, and sums up when the last of them has ended, however many tasks and workers handle them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pgqueue.core import Message, Rejected, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger

with DAG("pgqueue_batch", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:

    @task
    def publish(run_id: str) -> int:
        """Publish the orders and close their batch, in one transaction: both or neither."""
        hook = PgQueueHook()
        with hook.connect() as conn, conn.transaction():
            orders = [{"order_id": number} for number in range(1, 6)]
            ids = hook.publish_batch("orders_of_batch", orders, headers={"batch": run_id}, conn=conn)
            hook.run(verbs.close_batch("orders_of_batch", run_id, "batches_ended"), conn=conn)
        return len(ids)

    @task.pgqueue(queue_name="orders_of_batch", retries=2)
    def price(message: Message) -> Rejected | None:
        """Stand for work on one order."""
        return Rejected("no such order") if message.body["order_id"] == 5 else None

    publish("{{ run_id }}") >> price()

ended = Asset(
    "pgqueue_batches_ended",
    watchers=[AssetWatcher(name="ended", trigger=PgQueueMessageTrigger(queue_name="batches_ended"))],
)

with DAG("pgqueue_batch_ended", schedule=[ended], max_active_runs=1, tags=["pgqueue"], doc_md=__doc__) as after:

    @task.pgqueue(queue_name="batches_ended", retries=2)
    def sum_up(message: Message) -> None:
        """Say how the orders of a batch have ended."""
        results: dict[str, Any] = message.body["results"]
        print(f"batch {message.body['batch']}: {results['success']} of {message.body['messages']} orders are priced")

    sum_up()
