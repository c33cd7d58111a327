"""The tasks of the example of long work, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import psycopg
from airflow.sdk import DAG

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


def test_airflow_can_import_the_dags_of_the_chaos() -> None:
    module = import_module("tools.chaos.dags.waiting")
    dags = [value.dag_id for value in vars(module).values() if isinstance(value, DAG)]
    assert sorted(dags) == ["chaos_deferred", "chaos_waited", "chaos_watched"]
