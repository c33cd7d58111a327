"""Tells somebody when a queue stops itself because all that it delivers fails with one cause.

The queue is made with `pgqueue queues create payments --break-after 20`. Once it is broken it lets through single
messages, with growing pauses, and opens when one succeeds.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.triggers.broken_queue import PgQueueBrokenQueueTrigger

broken = Asset(
    "payments_broken",
    watchers=[AssetWatcher(name="payments_broken", trigger=PgQueueBrokenQueueTrigger(queue_name="payments"))],
)

with DAG(
    "pgqueue_broken_queue",
    schedule=[broken],
    is_paused_upon_creation=True,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:

    @task
    def tell() -> None:
        """Log it; a team would tell whoever is on duty."""
        for queue in PgQueueHook().run(verbs.broken_queues(["payments"])):
            print(f"queue {queue.queue_name} has been broken since {queue.broken_since}")

    tell()
