"""Hands messages over to DAG runs, and learns what became of them."""

from airflow_provider_pgqueue.dispatch.operator import PgQueueDispatchOperator as PgQueueDispatchOperator
from airflow_provider_pgqueue.dispatch.operator import PgQueueReconcileOperator as PgQueueReconcileOperator
