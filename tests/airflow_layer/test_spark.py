"""The operator that submits a pipeline, with a real spark-submit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run as perform
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
Queue = Callable[..., str]
Run = Callable[..., Any]

MODULE = """
import os, sys

def judge(batch):
    assert not any("secret" in argument for argument in sys.orig_argv)
    ids = batch["id"].to_pylist()
    return [{"id": id, "result": "rejected" if id % 10 == 0 else "success"} for id in ids] and None
"""


@pytest.fixture
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')


def drain(tmp_path: Path, **changes: Any) -> PgQueueSparkOperator:
    (tmp_path / "packing.py").write_text(MODULE)
    arguments: dict[str, Any] = {
        "task_id": "drain",
        "pipeline": "drain",
        "arguments": {"queue": "orders", "function": "packing:judge"},
        "run_id": "orders/manual__1/drain/-1",
        "env_vars": {"PYTHONPATH": str(tmp_path)},
        "driver_memory": "1g",
    }
    return PgQueueSparkOperator(**(arguments | changes))


def test_a_pipeline_runs_once_and_its_summary_is_the_result(
    airflow_connection: Callable[..., str],
    dsn: str,
    spark_default: None,
    conn: psycopg.Connection[Any],
    queue: Queue,
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    airflow_connection(dsn, password="secret")
    perform(conn, statements.publish_batch(queue("orders"), [{"body": "confidential"}] * 30))
    operator = drain(tmp_path)
    with caplog.at_level(logging.INFO):
        summary = run(operator)
    assert summary["results"]["success"] == 30
    assert "secret" not in caplog.text
    assert "confidential" not in caplog.text
    assert "PGQUEUE_DSN" not in repr({name: getattr(operator, name) for name in operator.template_fields})
    assert operator.env_vars == {"PYTHONPATH": str(tmp_path)}
    perform(conn, statements.publish("orders", 1))
    assert run(drain(tmp_path)) == summary  # the next try of a run that finished
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (1,)


def test_a_pipeline_that_fails_fails_the_task(
    conn_id: str, spark_default: None, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(AirflowException):
        run(drain(tmp_path, arguments={"queue": "nope", "function": "packing:judge"}))
    assert "queue 'nope' does not exist" in caplog.text


@pytest.mark.parametrize(
    ("master", "extra"), [("yarn", {}), ("k8s://https://k8s:6443", {}), ("spark://m", {"deploy-mode": "cluster"})]
)
def test_a_spark_that_shows_the_environment_is_refused(
    conn_id: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, extra: dict[str, str]
) -> None:
    import json

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master, "extra": extra}))
    with pytest.raises(AirflowException, match="send_connection=False"):
        run(drain(tmp_path))
