"""The operator that submits a pipeline, with a real spark-submit."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, verbs
from airflow_provider_pgqueue.core import run as perform
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator, _shortened
from tests.airflow_layer.airflow_versions import AirflowException, AirflowFailException
from tests.waiting import until
from tools import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]
Queue = Callable[..., str]
Run = Callable[..., Any]

MODULE = """
import time

def judge(batch):
    return None

def slowly(batch):
    time.sleep(1)

def again(dead):
    return dead.body
"""


@pytest.fixture
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def drain(tmp_path: Path, **changes: Any) -> PgQueueSparkOperator:
    (tmp_path / "packing.py").write_text(MODULE)
    arguments: dict[str, Any] = {
        "task_id": "drain",
        "pipeline": "drain",
        "arguments": {"queue": "orders", "function": "packing:judge"},
        "run_id": "orders/manual__1/drain/-1",
        "env_vars": {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        "driver_memory": "1g",
    }
    return PgQueueSparkOperator(**(arguments | changes))


def test_a_run_that_did_not_do_all_fails_the_task_unless_that_is_wanted(
    conn_id: str,
    spark_default: None,
    conn: psycopg.Connection[Any],
    run: Run,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The run had finished, as for the retry of a task: no Spark is started."""
    operator = drain(tmp_path)
    perform(conn, verbs.begin_run(operator.run_id, "drain"))
    perform(conn, verbs.finish_run(operator.run_id, '{"stopped": "too many rounds", "ready": 7, "lost": 0}'))
    with pytest.raises(AirflowFailException, match="'stopped': 'too many rounds'"):
        run(operator)
    assert run(drain(tmp_path, fail_on=[]))["ready"] == 7
    with pytest.raises(AirflowFailException, match=r"did not do all: {'ready': 7}"):
        run(drain(tmp_path, fail_on=["lost", "ready"]))
    assert "Spark-Submit cmd" not in "".join(capfd.readouterr())


def test_a_task_whose_drain_had_dead_messages_fails(
    conn_id: str, spark_default: None, conn: psycopg.Connection[Any], run: Run, tmp_path: Path
) -> None:
    operator = drain(tmp_path)
    perform(conn, verbs.begin_run(operator.run_id, "drain"))
    perform(conn, verbs.finish_run(operator.run_id, '{"stopped": null, "died": 2}'))
    with pytest.raises(AirflowFailException, match=r"did not do all: {'died': 2}"):
        run(operator)
    assert run(drain(tmp_path, fail_on=["stopped"]))["died"] == 2


def test_a_drain_that_is_stopped_releases_what_it_has_not_begun(
    conn_id: str, spark_default: None, conn: psycopg.Connection[Any], queue: Queue, run: Run, tmp_path: Path
) -> None:
    perform(conn, verbs.publish_batch(queue("orders"), [{"body": n} for n in range(100)]))
    arguments = {"queue": "orders", "function": "packing:slowly", "parallelism": 1, "batch_size": 1, "lease_for": "10m"}
    operator = drain(tmp_path, arguments=arguments)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(run, operator)
        until(lambda: conn.execute("SELECT FROM messages.message_archive").rowcount, 120, "the first message")
        operator.on_kill()
        with pytest.raises(AirflowException):
            task.result(60)
    assert conn.execute("SELECT FROM messages.message WHERE lock_expires_at > now()").rowcount == 0
    assert 0 < conn.execute("SELECT FROM messages.message_archive").rowcount < 100
    assert conn.execute("SELECT FROM messages.message WHERE attempts > 0").rowcount == 0


def test_a_dry_run_returns_its_summary_and_is_no_run(
    conn_id: str, spark_default: None, conn: psycopg.Connection[Any], queue: Queue, run: Run, tmp_path: Path
) -> None:
    perform(conn, verbs.publish_batch(queue("orders"), [{"body": "confidential"}] * 3))
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'failed') FROM messages.lease('orders', 3)")
    arguments = {"queue": "orders", "function": "packing:again", "dry_run": True}
    summary = run(drain(tmp_path, pipeline="repair", arguments=arguments))
    assert (summary["dry_run"], summary["requeued"]) == (True, 3)
    assert conn.execute("SELECT FROM messages.pipeline_run").rowcount == 0
    assert conn.execute("SELECT FROM messages.message").rowcount == 0


def test_a_dry_run_of_which_the_driver_is_elsewhere_is_refused(
    conn_id: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://m", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(AirflowException, match="deploy mode client"):
        run(drain(tmp_path, pipeline="repair", arguments={"dry_run": True}, send_connection=False))


def test_a_pipeline_that_fails_fails_the_task_also_under_a_name_that_is_too_long_and_nothing_shows_the_connection(
    airflow_connection: Callable[..., str],
    dsn: str,
    conn: psycopg.Connection[Any],
    spark_default: None,
    run: Run,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Pipelines that succeed are run by the examples, in tests/e2e/test_spark.py."""
    airflow_connection(dsn, password="secret")
    arguments = {"queue": "nope", "function": "packing:judge"}
    operator = drain(tmp_path, arguments=arguments, run_id=f"{'d' * 250}/manual__1/drain/-1")
    with pytest.raises(AirflowException, match="queue 'nope' does not exist"):
        run(operator)
    ((run_id,),) = conn.execute("SELECT run_id FROM messages.pipeline_run").fetchall()
    assert (len(run_id), run_id[:217]) == (250, 217 * "d")
    log = "".join(capfd.readouterr())
    assert "Spark-Submit cmd" in log
    assert "secret" not in log
    assert "PGQUEUE_DSN" not in repr({name: getattr(operator, name) for name in operator.template_fields})
    assert operator.env_vars == {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_a_name_that_is_too_long_stays_the_name_of_one_run() -> None:
    names = [f"{'d' * 250}/manual__1/drain/{index}" for index in (0, 1)]
    assert [_shortened(name) for name in names] == [_shortened(name) for name in names]
    assert _shortened(names[0]) != _shortened(names[1])
    assert _shortened("d" * 250) == "d" * 250


@pytest.mark.parametrize("none", [[], (), [None]])
def test_a_list_without_a_name_does_not_stand_for_everything(
    conn_id: str, spark_default: None, run: Run, tmp_path: Path, none: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"argument results is .*Give values, or leave it out for all"):
        run(drain(tmp_path, pipeline="repair", arguments={"results": none}))


@pytest.mark.parametrize(("master", "extra"), [("yarn", {}), ("spark://m", {"deploy-mode": "cluster"})])
def test_a_spark_that_shows_the_environment_is_refused(
    conn_id: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, extra: dict[str, str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master, "extra": extra}))
    with pytest.raises(AirflowException, match="send_connection=False"):
        run(drain(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipeline": "drian"}, r"^pipeline is 'drian'\. Give drain, export"),
        ({"pipeline": "job"}, "^pipeline is 'job'"),
        ({"arguments": {"queue": "orders", "functon": "x:y"}}, "^drain has no argument 'functon'. It takes queue, fun"),
        ({"arguments": {"queues": ["orders"]}}, "^drain has no argument 'queues'"),
    ],
    ids=str,
)
def test_a_pipeline_and_arguments_that_are_not_there_are_refused_where_they_are_written(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        drain(tmp_path, **change)
    drain(tmp_path, arguments={"queue": "orders", "function": "x:y", "lease-for": "5m"})
