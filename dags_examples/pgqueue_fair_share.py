"""Handles reports of many tenants so that none waits for the backlog of another: their messages take turns.

The tenant is the first word of the topic. In each turn every tenant gets one message.
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Success, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

with DAG("pgqueue_fair_share", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:

    @task
    def create_queue() -> None:
        """Create the queue. One that exists stays as it is; `verbs.alter_queue` changes it."""
        PgQueueHook().run(verbs.create_queue("tenant_reports", fair_by="topic"))

    @task
    def publish() -> None:
        """The large tenant comes first, and has many times as many reports as the others."""
        hook = PgQueueHook()
        for tenant, number in (("large", 1000), ("medium", 20), ("small", 10)):
            reports = [{"report": report} for report in range(number)]
            hook.publish_batch("tenant_reports", reports, topics=[f"{tenant}.report"] * number)

    @task.pgqueue(queue_name="tenant_reports", max_messages=60)
    def handle(message: Message) -> Success:
        """The first sixty messages include all of those of medium and small."""
        return Success(output={"report": message.body["report"]})

    create_queue() >> publish() >> handle()
