"""An Airflow connection to the test's database, and what a task finds when it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.airflow_layer.secrets import Vault

Connect = Callable[..., str]


def as_json(dsn: str, conn_type: str = "pgqueue", **changes: Any) -> str:
    """Return an Airflow connection to a database, as JSON."""
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
    return json.dumps(fields | changes)


@pytest.fixture
def airflow_connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Define an Airflow connection to a database: `airflow_connection(dsn, "my_id", password="wrong")`."""

    def define(dsn: str, conn_id: str = "pgqueue_default", conn_type: str = "pgqueue", **changes: Any) -> str:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", as_json(dsn, conn_type, **changes))
        return conn_id

    return define


@pytest.fixture
def conn_id(dsn: str, airflow_connection: Connect) -> str:
    """The id of an Airflow connection to the test's database."""
    return airflow_connection(dsn)


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Vault]]:
    """Let Airflow look for connections in a `Vault` first."""
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", f"{Vault.__module__}.{Vault.__qualname__}")
    Vault.asked.clear()
    Vault.open.set()
    yield Vault
    Vault.connections.clear()
    Vault.open.set()


@pytest.fixture
def context() -> dict[str, Any]:
    """As much of a task's context as the operators read."""
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="work", map_index=-1, try_number=1, max_tries=1)
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
