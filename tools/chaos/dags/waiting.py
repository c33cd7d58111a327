"""Each way in which Airflow waits for a queue and consumes it: a watcher, a sensor, and a consumer that defers."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.core import Message, Outcome, Rejected
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from tools.chaos.dags import HISTORY
from tools.chaos.history import History

LEASE = timedelta(seconds=5)
OFTEN = timedelta(seconds=5)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def handle(message: Message) -> Outcome | None:
    """Note the delivery, work a little, and go wrong now and then."""
    folder = Path(os.environ[HISTORY])
    History(folder / f"airflow-{os.getpid()}.jsonl").write("deliver", q=message.queue_name, keys=[message.body["k"]])
    time.sleep(0.01)
    match random.randrange(100):
        case 0:
            raise KeyError("a bug")
        case 1:
            return Rejected("no good")
    return None


def consume(queue_name: str, **how: Any) -> PgQueueConsumeOperator:
    return PgQueueConsumeOperator(
        task_id="consume", queue_name=queue_name, apply_function=handle, batch_size=20, lease_for=LEASE, retries=2,
        max_messages=1000, **how,
    )  # fmt: skip


arrived = Asset(
    "chaos_arrived",
    watchers=[AssetWatcher(name="arrived", trigger=MessageQueueTrigger(scheme="pgqueue", queue_name="d_watched"))],
)
with DAG("chaos_watched", schedule=[arrived], max_active_runs=1) as watched:
    consume("d_watched")

with DAG("chaos_waited", schedule=OFTEN, start_date=LONG_AGO, max_active_runs=1, catchup=False) as waited:
    PgQueueMessageSensor(task_id="wait", queue_name="d_waited", poll_interval=5, timeout=60) >> consume("d_waited")

with DAG("chaos_deferred", schedule=OFTEN, start_date=LONG_AGO, max_active_runs=1, catchup=False) as deferred:
    consume("d_deferred", wait_for_messages=True, wait_timeout=timedelta(seconds=60), poll_interval=5)
