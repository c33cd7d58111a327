"""Runs operators in a process of its own, with Airflow's metrics set up as the task runner sets them up."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider_pgqueue.core import Message, Outcome, Rejected, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.metrics import ConsumerMetrics, note_dispatches
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.operators.upkeep import PgQueueUpkeepOperator
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


def judge(message: Message) -> Outcome | None:
    """Reject one in three."""
    return Rejected("bad") if message.body == 0 else None


async def first_doorbell() -> Any:
    """Wait as the triggerer does."""
    async with aclosing(PgQueueMessageTrigger(queue_name="orders", for_task=True).run()) as events:
        return await asyncio.wait_for(anext(aiter(events)), 20)


def main() -> None:
    """Publish three messages, wait for them, consume them, and requeue the one that was rejected."""
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    ExecutorSafeguard.test_mode = True
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="work", map_index=-1, try_number=1)
    context: Any = {"ti": ti, "task_instance": ti}
    hook = PgQueueHook()
    PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=[0, 1, 2]).execute(context)
    asyncio.run(first_doorbell())
    PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=judge).execute(context)
    PgQueueRequeueOperator(task_id="requeue", queue_name="orders", results=["rejected"]).execute(context)
    PgQueueUpkeepOperator(task_id="upkeep", with_metrics=True).execute(context)
    note_dispatches("orders", "pack", hook.run(verbs.open_dispatches("orders")))
    ConsumerMetrics("orders").note_batch({"lost": 2})


if __name__ == "__main__":
    main()
