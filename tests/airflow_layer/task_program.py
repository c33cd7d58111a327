"""Runs operators in a process of its own, with metrics set up as the task runner does, or spans exported to a URL."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from airflow_provider_pgqueue.core import Message, Outcome, Rejected, Retry, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.telemetry.telemetry import ConsumerTelemetry, record_dispatches
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


def judge(message: Message) -> Outcome | None:
    """Reject one in three."""
    return Rejected("bad") if message.body == 0 else None


async def first_notification() -> Any:
    """Wait as the triggerer does."""
    async with aclosing(PgQueueMessageTrigger(queue_name="orders", for_task=True).run()) as events:
        return await asyncio.wait_for(anext(aiter(events)), 20)


def trace_to(url: str) -> None:
    """Publish and consume in two traces, and export the spans."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    trace.set_tracer_provider(provider)
    ExecutorSafeguard.test_mode = True
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="work", map_index=-1, try_number=1, max_tries=1)
    context: Any = {"ti": ti, "task_instance": ti}
    tracer = trace.get_tracer("test")

    def handle(message: Message) -> None:
        with tracer.start_as_current_span("inside"):
            if message.body == 0:
                raise ValueError("a secret of the body")

    with tracer.start_as_current_span("publisher"):
        PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=[0, 1, 2]).execute(context)
    with tracer.start_as_current_span("consumer"):
        each = {"apply_function": handle, "on_error": {ValueError: Retry(timedelta(0))}, "max_messages": 3}
        PgQueueConsumeOperator(task_id="consume", queue_name="orders", **each).execute(context)
        together: Any = {"apply_function_batch": lambda messages: None}
        PgQueueConsumeOperator(task_id="batch", queue_name="orders", **together).execute(context)
    provider.shutdown()


def main() -> None:
    """Publish three messages, wait for them, consume them, and requeue the one that was rejected."""
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    ExecutorSafeguard.test_mode = True
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="work", map_index=-1, try_number=1, max_tries=1)
    context: Any = {"ti": ti, "task_instance": ti}
    hook = PgQueueHook()
    PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=[0, 1, 2]).execute(context)
    asyncio.run(first_notification())
    PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=judge).execute(context)
    PgQueueRequeueOperator(task_id="requeue", queue_name="orders", results=["rejected"]).execute(context)
    PgQueueMaintenanceOperator(task_id="maintenance", with_metrics=True).execute(context)
    record_dispatches("orders", "pack", hook.run(verbs.open_dispatches("orders")))
    ConsumerTelemetry("orders", judge).record_batch({"lost": 2})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trace_to(sys.argv[1])
    else:
        main()
