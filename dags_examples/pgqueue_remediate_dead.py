"""Waits for rejected flights and starts a remediation run for them, which requeues or dismisses each.

`pgqueue_watch_dead` always has one run, deferred until something dies. The remediation leases what is dead: a run that
is lost loses nothing, the leases expire and the next run takes over.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, get_current_context, task

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor

with DAG(
    "pgqueue_watch_dead",
    schedule="@continuous",
    start_date=datetime(2024, 1, 1),
    max_active_runs=1,
    tags=["pgqueue"],
    doc_md=__doc__,
) as watch:
    wait = PgQueueDeadMessageSensor(task_id="wait_for_dead", queue_name="flights", results=["rejected"])
    start = TriggerDagRunOperator(
        task_id="remediate",
        trigger_dag_id="pgqueue_remediate_dead",
        trigger_run_id="dead__{{ run_id }}",  # a retry finds the run that it started before
        skip_when_already_exists=True,
        wait_for_completion=True,
        deferrable=True,
        poke_interval=5,
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
    wait >> start


@task(retries=2, retry_delay=timedelta(seconds=5))
def decide() -> dict[str, int]:
    """Requeue a cancelled flight that had an aircraft, as what it is; dismiss the others."""
    who = get_current_context()["run_id"]
    counts = {"requeued": 0, "dismissed": 0}
    with PgQueueHook().connect() as conn:
        while dead := run(conn, verbs.lease_dead("flights", results=["rejected"], max_messages=1000, locked_by=who)):
            repaired: dict[int, Any] = {
                message.id: message.body | {"status": "cancelled"} for message in dead if message.body["tailnum"]
            }
            hopeless = [message.id for message in dead if message.id not in repaired]
            token = dead[0].lock_token
            if repaired:
                counts["requeued"] += len(run(conn, verbs.requeue(token, list(repaired), bodies=repaired)))
            if hopeless:
                counts["dismissed"] += len(run(conn, verbs.dismiss(token, hopeless, "no aircraft was assigned")))
    return counts


with DAG("pgqueue_remediate_dead", schedule=None, tags=["pgqueue"], doc_md=__doc__) as remediate:
    decide()
