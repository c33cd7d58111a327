"""Publishes a message when a task fails, so that failures can be handled from a queue."""

from __future__ import annotations

from airflow.sdk import DAG, Param, get_current_context, task

from airflow_provider_pgqueue.notifications.pgqueue import PgQueueNotifier

with DAG(
    "pgqueue_notify",
    schedule=None,
    params={"broken": Param(True, type="boolean", description="Whether the task fails")},
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:

    @task(on_failure_callback=PgQueueNotifier(queue_name="alarms", topic="pgqueue_notify.failed"))
    def work() -> None:
        """Fail if the run says so."""
        if get_current_context()["params"]["broken"]:
            raise RuntimeError("broken, as the run says")

    work()
