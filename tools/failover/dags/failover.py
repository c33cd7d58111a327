"""The two ways in which Airflow begins work by itself: a watcher starts runs that consume, a dispatcher starts runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_pgqueue.core import Message
from airflow_provider_pgqueue.dispatch import get_messages
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator
from tools.failover.dags import BATCH

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def record(messages: Sequence[Message]) -> None:
    """Record each delivery with the run that got it, also the second one of a message."""
    run_id = get_current_context()["run_id"]
    with PgQueueHook().connect() as conn:
        for message in messages:
            conn.execute("INSERT INTO public.delivery VALUES (%s, %s, %s)", [message.queue_name, message.id, run_id])
    time.sleep(0.2)  # so that a kill finds some at work


arrived = Asset(
    "failover_arrived",
    watchers=[AssetWatcher(name="arrived", trigger=MessageQueueTrigger(scheme="pgqueue", queue_name="watched"))],
)
with DAG("failover_watched", schedule=[arrived], max_active_runs=1) as watched:
    PgQueueConsumeOperator(
        task_id="consume",
        queue_name="watched",
        apply_function_batch=record,
        batch_size=BATCH,
        lease_for=timedelta(seconds=10),
        retries=2,
    )

with DAG("failover_dispatch", schedule="@continuous", start_date=LONG_AGO, max_active_runs=1) as dispatching:
    PgQueueDispatchOperator(
        task_id="dispatch",
        queue_name="dispatched",
        trigger_dag_id="failover_work",
        batch_size=BATCH,
        max_open=4,
        wait_for_messages=True,
        retries=3,
    )

with DAG("failover_work", schedule=None, max_active_runs=4) as working:

    @task(retries=2, retry_delay=timedelta(seconds=5))
    def work() -> None:
        """Handle the messages of the run."""
        record(get_messages(get_current_context()))

    work()
