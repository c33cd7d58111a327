"""OpenLineage learns which queues a task reads and writes, through the extractor of its own provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import Asset
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgqueue.assets.pgqueue import convert_asset_to_openlineage
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator, PgQueuePublishQueryOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from tests.sinks import collector

Queue = Callable[..., str]
RunTask = Callable[..., Any]


def names(datasets: list[Any]) -> list[str]:
    return [f"{one.namespace}/{one.name}" for one in datasets]


def extract(operator: Any) -> OperatorLineage:
    found = DefaultExtractor(operator).extract_on_complete(None)
    assert found is not None
    return found


@pytest.fixture
def dataset(dsn: str, conn_id: str) -> str:
    known = conninfo_to_dict(dsn)
    return f"pgqueue://{known['host']}:{known['port']}/{known['dbname']}/orders"


def test_what_publishes_writes_and_what_consumes_reads_the_queue(dataset: str, queue: Queue, run: RunTask) -> None:
    queue("orders")
    publish = PgQueuePublishQueryOperator(task_id="publish", queue_name="orders", sql="SELECT 1 AS n")
    before = extract(publish)
    assert (names(before.outputs), before.outputs[0].outputFacets) == ([dataset], {})
    run(publish)
    found = extract(publish)
    assert (names(found.inputs), names(found.outputs)) == ([], [dataset])
    assert found.outputs[0].outputFacets["outputStatistics"].rowCount == 1
    (table,) = found.outputs[0].facets["symlinks"].identifiers
    assert table.name.endswith(".messages.message")
    assert found.job_facets["sql"].query == "SELECT 1 AS n"
    consume = PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=print)
    dispatch = PgQueueDispatchOperator(task_id="dispatch", queue_name="orders", trigger_dag_id="pack")
    for reader in (consume, dispatch):
        assert (names(extract(reader).inputs), extract(reader).outputs) == ([dataset], [])


def test_what_requeues_reads_and_writes_the_queue(dataset: str, queue: Queue, run: RunTask) -> None:
    queue("orders")
    requeue = PgQueueRequeueOperator(task_id="again", queue_name="orders")
    run(requeue)
    found = extract(requeue)
    assert names(found.inputs) == names(found.outputs) == [dataset]
    assert found.outputs[0].outputFacets["outputStatistics"].rowCount == 0


def test_what_works_on_all_queues_names_none(conn_id: str) -> None:
    for operator in (
        PgQueueMaintenanceOperator(task_id="u"),
        PgQueueRequeueOperator(task_id="r", queue_name=None, ids=[1]),
    ):
        assert extract(operator) == OperatorLineage()


def test_a_server_of_openlineage_takes_the_datasets(dataset: str, queue: Queue, run: RunTask) -> None:
    queue("orders")
    publish = PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=[1, 2])
    run(publish)
    found = extract(publish)
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime="2026-01-01T00:00:00Z",
        run=Run(runId="3f5e83fa-3480-44ff-99c5-ff943904e5e8"),
        job=Job(namespace="default", name="orders.publish"),
        inputs=found.inputs,
        outputs=found.outputs,
        producer="https://github.com/apache/airflow",
    )
    with collector() as (port, got):
        OpenLineageClient(config={"transport": {"type": "http", "url": f"http://127.0.0.1:{port}"}}).emit(event)
    (output,) = json.loads(got[0])["outputs"]
    assert f"{output['namespace']}/{output['name']}" == dataset
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_openlineage_knows_the_queue_as_that_of_our_operators(airflow_connection: Callable[..., str]) -> None:
    airflow_connection("host=db.example port=5433 user=shop dbname=queues", "shop")
    dataset = convert_asset_to_openlineage(Asset("pgqueue://shop/orders"), None)
    operator = PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1, pgqueue_conn_id="shop")
    (written,) = operator.get_openlineage_facets_on_start().outputs
    assert (dataset.namespace, dataset.name) == (written.namespace, written.name)
    assert (dataset.namespace, dataset.name) == ("pgqueue://db.example:5433", "queues/orders")
