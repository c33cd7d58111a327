"""The tasks of the example of long work, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import psycopg
from airflow.sdk import DAG

from tests.airflow_layer.test_remedies import example, rendered

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


def test_airflow_can_import_the_dags_of_the_chaos() -> None:
    module = import_module("tools.chaos.dags.waiting")
    dags = [value.dag_id for value in vars(module).values() if isinstance(value, DAG)]
    assert sorted(dags) == ["chaos_deferred", "chaos_waited", "chaos_watched"]


def test_the_example_of_long_work_ships_each_order_in_steps(
    conn_id: str, conn: Connection, queue: Queue, run: Run, context: dict[str, Any]
) -> None:
    queue("shipping")
    dag = example("pgqueue_long_work").dag
    run(rendered(dag.get_task("publish"), context))
    assert run(dag.get_task("ship")) == {"success": 2}
    outputs = [output for (output,) in conn.execute("SELECT output FROM messages.message_archive ORDER BY id")]
    assert outputs == [
        {"receipt": "receipt of order 1", "labels": ["parcel 1", "parcel 2"]},
        {"receipt": "receipt of order 2", "labels": ["parcel 1"]},
    ]
