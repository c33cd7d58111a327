"""Fires when a dispatcher has something to do."""

from airflow_provider_pgqueue.dispatch.trigger import PgQueueDispatchTrigger as PgQueueDispatchTrigger
