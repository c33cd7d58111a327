"""DAGs that the end-to-end tests drive: one starts a run for each cause of dead messages, and the run resolves it."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from airflow_provider_pgqueue.core import LEAVE, DeadMessage
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor


def correct(message: DeadMessage) -> Any:
    """Return a body that is right, or leave what died of a cause that is still there."""
    return LEAVE if message.details == "still full" else message.body | {"corrected": True}


def run_of(cause: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task that starts the run for a cause."""
    return {"trigger_run_id": f"{cause['fingerprint']}__{cause['newest_id']}", "conf": cause}


with DAG("e2e_causes", schedule=None) as causes:
    found = PgQueueDeadMessageSensor(task_id="causes", queue_name="e2e_dead", poll_interval=1.0)
    TriggerDagRunOperator.partial(
        task_id="start", trigger_dag_id="e2e_resolution", skip_when_already_exists=True
    ).expand_kwargs(found.output.map(run_of))

with DAG("e2e_resolution", schedule=None) as resolution:
    PgQueueRequeueOperator(
        task_id="repair", queue_name="e2e_dead", cause="{{ dag_run.conf['fingerprint'] }}", function=correct
    )
