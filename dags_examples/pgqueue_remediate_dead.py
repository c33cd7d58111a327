"""Waits for rejected flights and starts a remediation run for them, which requeues or dismisses each.

`pgqueue_watch_dead` always has one run, deferred until something dies. The remediation leases what is dead: a run that
is lost loses nothing, the leases expire and the next run takes over.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from airflow_provider_pgqueue.core import DeadMessage, Dismiss
from airflow_provider_pgqueue.operators.repair import PgQueueRepairOperator
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


def correct(flight: DeadMessage) -> Any:
    """Requeue a flight that had an aircraft, marked as cancelled; dismiss the others."""
    if flight.body["tailnum"]:
        return flight.body | {"status": "cancelled"}
    return Dismiss("no aircraft was assigned")


with DAG("pgqueue_remediate_dead", schedule=None, tags=["pgqueue"], doc_md=__doc__) as remediate:
    PgQueueRepairOperator(
        task_id="repair",
        queue_name="flights",
        results=["rejected"],
        function=correct,
        batch_size=1000,
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
