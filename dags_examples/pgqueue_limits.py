"""Calls an API that allows sixty calls a minute, and three of each customer at a time.

The queue keeps both limits for all consumers. A run waits, without a worker slot, until a message waits and a call
is allowed; then it makes as many calls as are allowed, at most ten at once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator


def call(message: Message) -> None:
    """Call the API for the customer `message.group_key`; after an exception it is leased, and counts, again."""


with DAG(
    "pgqueue_limits",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),  # without one, Airflow makes a single run
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:

    @task
    def create_queue() -> bool:
        """A queue that exists is not changed."""
        return PgQueueHook().run(
            verbs.create_queue(
                "calls",
                max_leased_per_group=3,
                rate_limit=51,  # and the burst: at most 51 + 10 - 1 in any minute
                rate_period=timedelta(minutes=1),
                rate_burst=10,
                on_dead_head="skip",
            )
        )

    consume = PgQueueConsumeOperator(
        task_id="consume", queue_name="calls", apply_function=call, wait_for_messages=True, retries=3
    )
    create_queue() >> consume
