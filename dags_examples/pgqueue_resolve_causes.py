"""Starts one run for each cause of the dead orders, and asks a person before their messages are requeued.

A watcher starts `pgqueue_resolve_causes` when messages die, and again while they stay dead. The id of a run of
`pgqueue_resolve_cause` names the cause and its newest message, so that a cause gets another run only if more messages
died of it. The run counts the messages, waits for approval, and requeues five of them first; if the person rejects,
the messages stay dead.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger

orders_died = Asset(
    "pgqueue_orders_died",
    watchers=[
        AssetWatcher(name="orders_died", trigger=PgQueueDeadMessageTrigger(queue_name="packing", notify_every=60))
    ],
)


def run_of(cause: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task that starts the run for a cause."""
    return {"trigger_run_id": f"{cause['fingerprint']}__{cause['newest_id']}", "conf": cause}


with DAG(
    "pgqueue_resolve_causes", schedule=[orders_died], max_active_runs=1, tags=["pgqueue"], doc_md=__doc__
) as causes:
    found = PgQueueDeadMessageSensor(task_id="causes", queue_name="packing")
    TriggerDagRunOperator.partial(
        task_id="start", trigger_dag_id="pgqueue_resolve_cause", skip_when_already_exists=True
    ).expand_kwargs(found.output.map(run_of))

with DAG("pgqueue_resolve_cause", schedule=None, tags=["pgqueue"], doc_md=__doc__) as cause:
    count = PgQueueRequeueOperator(
        task_id="count", queue_name="packing", cause="{{ dag_run.conf['fingerprint'] }}", dry_run=True
    )
    approve = ApprovalOperator(
        task_id="approve",
        subject="Requeue {{ ti.xcom_pull(task_ids='count')['requeued'] }} orders that died of "
        "{{ dag_run.conf['fingerprint'] }}?",
        response_timeout=timedelta(days=3),
    )
    requeue = PgQueueRequeueOperator(
        task_id="requeue",
        queue_name="packing",
        cause="{{ dag_run.conf['fingerprint'] }}",
        canary=5,
        stop_when_failing=50,
        max_per_second=100,
        retries=2,
    )
    count >> approve >> requeue
