"""The example DAGs of the pipeline in a real Airflow, each task a real spark-submit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import PATIENCE, places_of, until, wait_for_run
from tools.airflow import Stack
from tools.partitions import make_empty_partition
from tools.postgres import Cluster

pytestmark = [pytest.mark.airflow, pytest.mark.spark]
Connection = psycopg.Connection[Any]

CANARY = "SPARK-CANARY"
DRAIN, EXPORT, REPAIR = "pgqueue_spark_drain", "pgqueue_spark_export", "pgqueue_spark_repair"


def results(conn: Connection, queue_name: str) -> dict[str, int]:
    query = "SELECT result, count(*) FROM messages.message_archive WHERE queue_name = %s GROUP BY 1"
    return dict(conn.execute(query, [queue_name]).fetchall())


def trigger(stack: Stack, dag_id: str, conf: dict[str, Any] | None = None) -> str:
    """Start a run by hand, wait until it succeeded, and return its id."""
    stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger(dag_id, conf)
    assert wait_for_run(stack, dag_id, run_id, timeout=2 * PATIENCE) == "success"
    return run_id


def unpause(stack: Stack, dag_id: str) -> str:
    """Let a DAG run that was paused: Airflow starts its last scheduled run at once, and this waits for it."""
    stack.client.wait_for_dag(dag_id)
    assert stack.client.runs(dag_id) == []
    stack.client.pause(dag_id, False)
    runs = until(lambda: stack.client.runs(dag_id), timeout=PATIENCE, what=f"the scheduled run of {dag_id}")
    run_id = str(runs[0]["dag_run_id"])
    assert wait_for_run(stack, dag_id, run_id, timeout=2 * PATIENCE) == "success"
    return run_id


# Drain ----------------------------------------------------------------------------------------------------------------


def test_spark_drains_the_flights_and_its_figures_are_those_of_the_file(stack: Stack, queue_conn: Connection) -> None:
    run_id = trigger(stack, DRAIN, {"flights": 2000})
    drained = stack.client.xcom(DRAIN, run_id, "drain")["results"]
    assert {name: number for name, number in drained.items() if number} == results(queue_conn, "spark_flights")
    assert sum(results(queue_conn, "spark_flights").values()) == 2000
    assert stack.client.xcom(DRAIN, run_id, "compare")["figures"] > 10


# Export ---------------------------------------------------------------------------------------------------------------


def closed_partition(conn: Connection, days_ago: int, number: int) -> str:
    """Make a partition of one day that has ended, with messages that succeeded in it; return its name."""
    day = (datetime.now(UTC) - timedelta(days=days_ago)).replace(hour=0, minute=0, second=0, microsecond=0)
    name = make_empty_partition(conn, day, day + timedelta(days=1))
    conn.execute(
        "INSERT INTO messages.message_archive"
        " (queue_name, result, created_at, leased_at, archived_at, attempts, message)"
        " SELECT 'e2e_export', 'success', %(day)s, %(day)s, %(day)s + n * interval '1 s', 1,"
        " jsonb_build_object('order_id', n, 'note', %(note)s::text) FROM generate_series(1, %(number)s) n",
        {"day": day, "note": CANARY, "number": number},
    )
    return name


def partitions(conn: Connection) -> set[str]:
    rows = conn.execute("SELECT split_part(p.partition::text, '.', 2) FROM messages.archive_partitions() p").fetchall()
    return {name for (name,) in rows}


def files(target: Path) -> dict[str, int]:
    return {str(path.relative_to(target)): path.stat().st_mtime_ns for path in target.rglob("*") if path.is_file()}


def test_the_night_exports_a_closed_partition_once_however_often_its_tasks_are_tried(
    stack: Stack, queue_conn: Connection, cluster: Cluster
) -> None:
    target = stack.directory / "export"
    queue_conn.execute("SELECT messages.create_queue('e2e_export')")
    name = closed_partition(queue_conn, 40, 300)

    first = unpause(stack, EXPORT)

    assert name not in partitions(queue_conn)
    manifest = json.loads((target / "_manifests" / f"{name}.json").read_text())
    assert manifest["rows"] == 300
    assert pq.read_table(target / "data", columns=["id"]).num_rows == 300

    younger, summary, written = closed_partition(queue_conn, 39, 20), exported(stack, first), files(target)
    tries = number_of_tries(stack, first)
    stack.client.clear(EXPORT, first, "export")
    assert wait_for_run(stack, EXPORT, first, timeout=2 * PATIENCE) == "success"
    assert number_of_tries(stack, first) == tries + 1
    assert (exported(stack, first), files(target)) == (summary, written)
    assert younger in partitions(queue_conn)
    assert places_of(CANARY, stack, cluster) == []


def exported(stack: Stack, run_id: str) -> dict[str, Any]:
    summary: dict[str, Any] = stack.client.xcom(EXPORT, run_id, "export")
    return summary


def number_of_tries(stack: Stack, run_id: str) -> int:
    (task,) = stack.client.task_instances(EXPORT, run_id)
    return int(task["try_number"])


# Repair ---------------------------------------------------------------------------------------------------------------


def die(conn: Connection, number: int, result: str, details: str) -> None:
    """Let flights die of a cause, as a consumer would."""
    flight = {"carrier": "UA", "month": 1, "dep_time": 517, "dep_delay": 2, "arr_time": None, "sched_arr_time": 819}
    conn.execute(
        "SELECT messages.publish('spark_flights', %s) FROM generate_series(1, %s)",
        [json.dumps(flight | {"tailnum": CANARY}), number],
    )
    conn.execute(
        "SELECT messages.archive(l.lock_token, array_agg(l.id), %s, details => %s)"
        " FROM messages.lease('spark_flights', 1000) l GROUP BY l.lock_token",
        [result, details],
    )


def open(conn: Connection) -> dict[str, int]:
    query = "SELECT result, count(*) FROM messages.dead_message WHERE queue_name = 'spark_flights' GROUP BY 1"
    return dict(conn.execute(query.encode()).fetchall())


def test_the_causes_that_have_a_repair_are_repaired_and_worked_off(
    stack: Stack, queue_conn: Connection, cluster: Cluster
) -> None:
    queue_conn.execute("SELECT messages.create_queue('spark_flights')")
    die(queue_conn, 12, "failed", "no arrival report yet")
    die(queue_conn, 3, "rejected", "no departure time")
    dead, success = open(queue_conn), results(queue_conn, "spark_flights").get("success", 0)

    run_id = unpause(stack, REPAIR)

    assert open(queue_conn) == {"rejected": dead["rejected"]}
    assert results(queue_conn, "spark_flights")["success"] == success + dead["failed"]

    assert stack.client.xcom(REPAIR, run_id, "repair", map_index=0)["requeued"] == dead["failed"]
    assert stack.client.xcom(REPAIR, run_id, "drain")["archived"] == dead["failed"]
    assert places_of(CANARY, stack, cluster) == []
