"""One real Airflow for all end-to-end tests: api-server, scheduler, triggerer, dag-processor, LocalExecutor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import sinks, waiting
from tests.e2e.evidence import evidence
from tools import ROOT, STATE
from tools.airflow import Stack
from tools.airflow_client import FINISHED
from tools.postgres import Cluster, fleeting_place

HERE = Path(__file__).parent
# Seconds that a state may take to come: a loaded machine is slow, and what Airflow waits for before it tries again,
# calls a task dead or starts a run adds up to minutes.
PATIENCE = 300.0
# Many looks are requests to Airflow's API, which would else do nothing but answer them while the test waits.
until = partial(waiting.until, pause=0.2)
# What forks for each task and each DAG file imports these once; without, each of them needs a third of a second for it.
# Imports leave no garbage, and looking for it again and again is a sixth of what a start costs.
_OF_EACH_PROCESS = """
import gc
import sys

gc.set_threshold(50_000, 20, 100)
if {"scheduler", "dag-processor"} & set(sys.argv):
    import airflow.providers.common.messaging.triggers.msg_queue
    import airflow.sdk.definitions.decorators
    import airflow_provider_pgqueue.operators.dispatch
    import airflow_provider_pgqueue.operators.requeue
    import airflow_provider_pgqueue.operators.maintenance
    import airflow_provider_pgqueue.sensors.message
"""
_STACK = pytest.StashKey[Stack]()
_BEGAN_AT = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the Airflow alone, which writes all the time: tests of the log would wait for it."""
    kind = request.config.getoption("--pg")
    limit = waiting.LONGEST_STATEMENT
    cluster = Cluster(fleeting_place() / "airflow", kind=kind, durable=False, statement_timeout=limit)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


@pytest.fixture(scope="session")
def statsd() -> Iterator[sinks.Statsd]:
    """What takes the metrics of the running Airflow, without those of its triggerer."""
    with sinks.statsd() as server:
        yield server


@pytest.fixture(scope="session")
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """What takes the metrics of its triggerer, by OpenTelemetry."""
    with sinks.collector() as server:
        yield server


def metrics_to(**settings: object) -> dict[str, str]:
    """Return settings of Airflow's metrics; none where this Airflow was installed without them."""
    known = {f"AIRFLOW__METRICS__{name.upper()}": str(value) for name, value in settings.items()}
    return known if find_spec("statsd") else {}


@pytest.fixture(scope="session")
def stack(
    request: pytest.FixtureRequest, cluster: Cluster, statsd: sinks.Statsd, collector: tuple[int, list[bytes]]
) -> Iterator[Stack]:
    """The running Airflow, its queue installed by the setup DAG."""
    directory = STATE / "tests" / f"airflow-{os.getpid()}"
    dags = directory / "dags"
    shutil.copytree(ROOT / "dags_examples", dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE / "dags", dags, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    settings = directory / "home" / "config" / "airflow_local_settings.py"
    settings.parent.mkdir(parents=True)
    settings.write_text(_OF_EACH_PROCESS)
    stack = Stack(
        directory,
        metadata=cluster.create_database("e2e_airflow"),
        dags=dags,
        parallelism=8,
        environment={
            "AIRFLOW_CONN_PGQUEUE_DEFAULT": cluster.create_database("e2e_queue"),
            # Parsed once: the files do not change, and each parsing takes the machine some seconds. So no parsing
            # may be given up.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "240",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
            # A task waits five seconds for an answer, and then asks again for what may have been done.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # A scheduler looks every five minutes for tasks of one that was killed, unless told otherwise.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            # And takes one for dead that was silent for a while, also itself: a slow one would do its tasks twice.
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "40",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW_VAR_PGQUEUE_EXPORT_TARGET": str(directory / "export"),
            **metrics_to(statsd_on=True, statsd_port=statsd.port, statsd_influxdb_enabled=True),
        },
        environment_of={
            "triggerer": metrics_to(
                statsd_on=False,
                otel_on=True,
                otel_host="127.0.0.1",
                otel_port=collector[0],
                otel_interval_milliseconds=1000,
            )
        },
    )
    request.session.stash[_STACK] = stack
    try:
        # Whoever is silent for so long is killed and starts again, which takes a loaded machine as long again.
        stack.start(timeout=PATIENCE)
        stack.client.wait_for_dag("pgqueue_setup")
        run_id = stack.client.trigger("pgqueue_setup")
        state = wait_for_run(stack, "pgqueue_setup", run_id)
        assert state == "success", stack.client.log("pgqueue_setup", run_id, "install")
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Let a failure say what Airflow did meanwhile."""
    report = yield
    item.stash.setdefault(_BEGAN_AT, call.start)
    if report.failed and (stack := item.session.stash.get(_STACK, None)):
        report.sections += evidence(stack, item.stash[_BEGAN_AT])
    return report


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the Airflow when no test of it is left: idle, it still takes a part of the machine from the others."""
    stack = item.session.stash.get(_STACK, None)
    if stack and (nextitem is None or HERE not in nextitem.path.parents):
        stack.stop(patience=0.0)  # nobody needs what it would still do


@pytest.fixture(autouse=True)
def running(stack: Stack) -> None:
    """Fix what the test before left broken: one red test makes no other red."""
    stack.start()


def state_of_run(stack: Stack, dag_id: str, run_id: str) -> str | None:
    """Return the state of a run; from the metadata, because requests to Airflow cost several times as much."""
    with psycopg.connect(stack.metadata) as metadata:
        query = "SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s"
        row = metadata.execute(query, [dag_id, run_id]).fetchone()
    return row and str(row[0])


def states_of_tasks(stack: Stack, dag_id: str, run_id: str) -> list[tuple[str, str | None]]:
    """Return the tasks of a run with their states, from the metadata, too."""
    with psycopg.connect(stack.metadata) as metadata:
        query = "SELECT task_id, state FROM task_instance WHERE dag_id = %s AND run_id = %s ORDER BY 1, map_index"
        return metadata.execute(query, [dag_id, run_id]).fetchall()


def wait_for_run(stack: Stack, dag_id: str, run_id: str, timeout: float = PATIENCE) -> str:
    """Wait until the run has ended, and return how."""
    until(
        lambda: state_of_run(stack, dag_id, run_id) in FINISHED,
        timeout=timeout,
        pause=0.5,
        what=f"the end of run {run_id!r} of {dag_id!r}",
        tell=lambda: states_of_tasks(stack, dag_id, run_id),
    )
    return str(stack.client.run(dag_id, run_id)["state"])


@contextmanager
def unpaused(stack: Stack, dag_id: str) -> Iterator[None]:
    """Let a DAG that is paused run meanwhile."""
    stack.client.pause(dag_id, False)
    try:
        yield
    finally:
        stack.client.pause(dag_id)


@pytest.fixture
def queue_conn(stack: Stack, cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """A session to the queue that the Airflow uses."""
    with psycopg.connect(cluster.dsn("e2e_queue"), autocommit=True) as conn:
        yield conn


def places_of(text: str, stack: Stack, cluster: Cluster) -> list[str]:
    """Return the logs and the tables of Airflow in which a text is, and the log of PostgreSQL if it is there."""
    logs = [*stack.directory.rglob("*.log"), cluster.directory / "server.log"]
    places = [str(path) for path in logs if text.encode() in path.read_bytes()]
    with psycopg.connect(stack.metadata) as metadata:
        for table in ("xcom", "asset_event", "dag_run", "trigger", "rendered_task_instance_fields"):
            query = f"SELECT count(*) FROM {table} t WHERE strpos(t::text, %s) > 0".encode()  # noqa: S608
            if metadata.execute(query, [text]).fetchone() != (0,):
                places.append(table)
    return places
