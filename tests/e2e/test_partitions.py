"""Which partitions of an asset messages have changed, on a real Airflow."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.e2e.conftest import PATIENCE, until
from tools.airflow import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.airflow_since("3.3")]
Connection = psycopg.Connection[Any]


def test_a_handler_tells_which_partitions_of_an_outlet_its_messages_changed(
    stack: Stack, queue_conn: Connection
) -> None:
    run(queue_conn, verbs.create_queue("e2e_regions"))
    run(queue_conn, verbs.publish_batch("e2e_regions", [{"region": region} for region in ("eu", "us", "eu")]))
    for known in ("e2e_of_a_region", "e2e_note_regions"):
        stack.client.wait_for_dag(known)
    stack.client.trigger("e2e_note_regions")
    until(
        lambda: [run["state"] for run in stack.client.runs("e2e_of_a_region")] == ["success"] * 2,
        timeout=PATIENCE,
        what="a run for each region",
    )
    run_ids = [run["dag_run_id"] for run in stack.client.runs("e2e_of_a_region")]
    seen = [stack.client.xcom("e2e_of_a_region", run_id, "partition") for run_id in run_ids]
    assert sorted(seen) == ["eu", "us"]


def test_a_watcher_gives_airflow_no_partition_and_airflow_records_that(stack: Stack, queue_conn: Connection) -> None:
    run(queue_conn, verbs.create_queue("e2e_partitions"))
    stack.client.wait_for_dag("e2e_of_a_watcher")
    run(queue_conn, verbs.publish("e2e_partitions", {}))
    until(
        lambda: "e2e_of_a_watcher" in str(stack.client.get("eventLogs", event="missing partition key")),
        timeout=PATIENCE,
        what="a record of an event without a partition",
    )
    assert stack.client.runs("e2e_of_a_watcher") == []
