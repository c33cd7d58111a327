"""Publishes the flights of 2013, one message each.

The source is read as a stream, and each batch is committed, so that the consumers begin before the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import DAG, Param, get_current_context

from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from flights import read_flights


def flights() -> Iterator[dict[str, Any]]:
    """Yield as many flights as the run asks for."""
    return read_flights(get_current_context()["params"]["flights"])


with DAG(
    "pgqueue_publish",
    schedule=None,
    params={"flights": Param(None, type=["null", "integer"], minimum=1, description="How many; empty for all")},
    tags=["pgqueue"],
    doc_md=__doc__,
) as dag:
    PgQueuePublishOperator(task_id="publish", queue_name="flights", messages=flights, one_transaction=False)
