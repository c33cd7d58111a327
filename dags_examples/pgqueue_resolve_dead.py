"""Repairs rejected flights: a watcher starts a run when messages have died, and the run leases and resolves them.

Messages that the run leaves dead start further runs after growing pauses, from one minute to half an hour, and a run
whose function raised fails. A run that is lost loses nothing: its leases expire, and the next run continues.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.core import DeadMessage, Dismiss
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger

flights_died = Asset(
    "pgqueue_flights_died",
    watchers=[
        AssetWatcher(
            name="flights_died",
            trigger=PgQueueDeadMessageTrigger(queue_name="flights", results=["rejected"], notify_every=60),
        )
    ],
)


def correct(flight: DeadMessage) -> Any:
    """Requeue a flight that had an aircraft, marked as cancelled; dismiss the others."""
    if flight.body["tailnum"]:
        return flight.body | {"status": "cancelled"}
    return Dismiss("no aircraft was assigned")


with DAG("pgqueue_resolve_dead", schedule=[flights_died], max_active_runs=1, tags=["pgqueue"], doc_md=__doc__) as dag:
    PgQueueRequeueOperator(
        task_id="repair",
        queue_name="flights",
        results=["rejected"],
        function=correct,
        fail_on=["raised", "invalid"],
        retries=2,
    )
