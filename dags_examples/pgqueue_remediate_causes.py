"""Starts one run for each cause of the dead orders, and asks a person before their messages are requeued.

A watcher starts `pgqueue_remediate_causes` when messages die. It hands the messages of each cause to a run of
`pgqueue_remediate_cause`, which counts them, waits for approval, and requeues five of them first. A run that fails is
followed by another one; what a person rejects stays dead.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.operators.dispatch_dead import PgQueueDispatchDeadOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger

IDS = "{{ dag_run.conf['pgqueue']['ids'] }}"

orders_died = Asset(
    "pgqueue_orders_died",
    watchers=[AssetWatcher(name="orders_died", trigger=PgQueueDeadMessageTrigger(queue_name="packing", ring_every=60))],
)

with DAG(
    "pgqueue_remediate_causes", schedule=[orders_died], max_active_runs=1, tags=["pgqueue"], doc_md=__doc__
) as causes:
    PgQueueDispatchDeadOperator(
        task_id="dispatch", queue_name="packing", trigger_dag_id="pgqueue_remediate_cause", retries=3
    )

with DAG("pgqueue_remediate_cause", schedule=None, tags=["pgqueue"], doc_md=__doc__) as cause:
    count = PgQueueRequeueOperator(task_id="count", queue_name="packing", ids=IDS, dry_run=True)
    approve = ApprovalOperator(
        task_id="approve",
        subject="Requeue {{ ti.xcom_pull(task_ids='count')['requeued'] }} orders that died of "
        "{{ dag_run.conf['pgqueue']['fingerprint'] }}?",
        response_timeout=timedelta(days=3),
    )
    requeue = PgQueueRequeueOperator(
        task_id="requeue",
        queue_name="packing",
        ids=IDS,
        canary=5,
        stop_when_failing=50,
        max_per_second=100,
        retries=2,
    )
    count >> approve >> requeue
