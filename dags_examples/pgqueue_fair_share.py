"""Handles reports of many tenants so that none waits for the backlog of another: their messages take turns.

`create_queue` says by what: the first word of the topic, which is the tenant. The tenant `gold` has three messages in
each turn. Run it again at will: a queue that exists is only changed.
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import Message, Success, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

with DAG("pgqueue_fair_share", schedule=None, tags=["pgqueue"], doc_md=__doc__) as dag:

    @task
    def create_queue() -> None:
        """One statement makes a queue fair; publishers and consumers stay as they are."""
        hook = PgQueueHook()
        hook.run(verbs.create_queue("reports"))
        hook.run(verbs.alter_queue("reports", fair_by="topic", weights={"gold": 3}))

    @task
    def publish() -> None:
        """The large tenant comes first, and has a hundred times as much as the others."""
        hook = PgQueueHook()
        for tenant, number in (("large", 1000), ("gold", 30), ("small", 10)):
            hook.run(
                verbs.publish_batch(
                    "reports", ({"report": report} for report in range(number)), topics=[f"{tenant}.report"] * number
                )
            )

    @task.pgqueue(queue_name="reports", max_messages=60)
    def handle(message: Message) -> Success:
        """Among the first sixty are all that gold and small have."""
        return Success(output={"report": message.body["report"]})

    create_queue() >> publish() >> handle()
