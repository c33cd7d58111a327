"""DAGs that the end-to-end tests drive: one hands causes of dead messages over, and a run of the other remedies one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_pgqueue.core import DeadMessage, run, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.dispatch_dead import PgQueueDispatchDeadOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator


def correct(message: DeadMessage) -> Any:
    """Return a body that is right."""
    return message.body | {"corrected": True}


with DAG("e2e_remedy_dispatch", schedule=None) as dispatch:
    PgQueueDispatchDeadOperator(
        task_id="dispatch", queue_name="e2e_dead", trigger_dag_id="e2e_remedy", retry_after=timedelta(0)
    )

with DAG("e2e_remedy", schedule=None) as remedy:

    @task
    def fail_once() -> None:
        """Fail for the cause that says so, unless a run of it has failed before."""
        named = get_current_context()["dag_run"].conf["pgqueue"]
        with PgQueueHook().connect() as conn:
            causes = run(conn, verbs.dead_causes(named["queue_name"]))
            example = next(one.example for one in causes if one.fingerprint == named["fingerprint"])
            failed = conn.execute(
                "SELECT FROM messages.dispatch WHERE fingerprint = %s AND result = 'failed'", [named["fingerprint"]]
            ).fetchone()
        if example == "fail once" and failed is None:
            raise RuntimeError("as it was told")

    fail_once() >> PgQueueRequeueOperator(
        task_id="repair", queue_name="e2e_dead", ids="{{ dag_run.conf['pgqueue']['ids'] }}", function=correct
    )
