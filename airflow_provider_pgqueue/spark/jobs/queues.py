"""Queues that a pipeline is told to look at: a misspelt name must not read as a queue with nothing in it."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.spark.database import Database


def require_queues(database: Database, queue_names: Collection[str]) -> None:
    """Raise QueueNotFound for the first of these names that no queue has now."""
    if queue_names:
        with database.connect("pgqueue pipeline") as conn:
            run(conn, verbs.check_queues_exist(queue_names))
