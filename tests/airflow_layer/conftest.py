"""An Airflow connection to the test's database, and what a task finds when it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

Connect = Callable[..., str]


@pytest.fixture
def airflow_connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Define an Airflow connection to a database: `airflow_connection(dsn, "my_id", password="wrong")`."""

    def define(dsn: str, conn_id: str = "pgqueue_default", conn_type: str = "pgqueue", **changes: Any) -> str:
        known = conninfo_to_dict(dsn)
        fields = {
            "conn_type": conn_type,
            "host": known.pop("host"),
            "port": int(known.pop("port")),
            "login": known.pop("user"),
            "password": known.pop("password", None),
            "schema": known.pop("dbname"),
            "extra": known | changes.pop("extra", {}),
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields | changes))
        return conn_id

    return define


@pytest.fixture
def conn_id(dsn: str, airflow_connection: Connect) -> str:
    """The id of an Airflow connection to the test's database."""
    return airflow_connection(dsn)


@pytest.fixture
def context() -> dict[str, Any]:
    """As much of a task's context as the operators read."""
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="work", map_index=-1, try_number=1)
    return {"ti": ti, "task_instance": ti}


@pytest.fixture
def run(context: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run an operator as the task runner does: `run(operator)`."""
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)

    def execute(operator: Any, method: str = "execute", **kwargs: Any) -> Any:
        context["ti"].task_id = operator.task_id
        operator.pre_execute(context)
        return getattr(operator, method)(context, **kwargs)

    return execute
