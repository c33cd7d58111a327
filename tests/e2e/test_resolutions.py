"""What becomes of dead messages, on a real Airflow: a run for each cause, and a person who approves it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.e2e.conftest import PATIENCE, states_of_tasks, until, wait_for_run
from tests.sinks import Statsd, metrics_of, tags_of
from tools.airflow import Stack

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]


def die(conn: Connection, queue_name: str, number: int, details: str) -> list[int]:
    """Publish messages, let them die of one cause, and return their ids."""
    ids = run(
        conn, verbs.publish_batch(queue_name, [{"order_id": n, "secret": "plum-in-a-body"} for n in range(number)])
    )
    taken = run(conn, verbs.lease(queue_name, max_messages=number))
    run(conn, verbs.archive(taken[0].lock_token, ids, result="failed", details=details))
    return ids


def runs(stack: Stack, dag_id: str) -> list[dict[str, Any]]:
    return [one for one in stack.client.runs(dag_id) if one["run_type"] != "asset_triggered"]


def test_each_cause_has_a_run_and_another_only_when_more_of_it_died(
    stack: Stack, queue_conn: Connection, statsd: Statsd
) -> None:
    run(queue_conn, verbs.create_queue("e2e_dead"))
    for dag_id in ("e2e_causes", "e2e_resolution"):
        stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger("e2e_causes")

    def waits() -> bool:
        return ("causes", "deferred") in states_of_tasks(stack, "e2e_causes", run_id)

    until(waits, timeout=PATIENCE, what="a sensor that waits in the triggerer")
    full = die(queue_conn, "e2e_dead", 3, "disk full")
    assert wait_for_run(stack, "e2e_causes", run_id) == "success"
    (first,) = runs(stack, "e2e_resolution")
    assert wait_for_run(stack, "e2e_resolution", first["dag_run_id"]) == "success"
    run(queue_conn, verbs.purge_queue("e2e_dead"))
    left = die(queue_conn, "e2e_dead", 2, "still full")
    for more, number in ((0, 2), (0, 2), (1, 3)):
        left += die(queue_conn, "e2e_dead", more, "still full") if more else []
        assert wait_for_run(stack, "e2e_causes", stack.client.trigger("e2e_causes")) == "success"
        found = runs(stack, "e2e_resolution")
        assert len(found) == number
        assert wait_for_run(stack, "e2e_resolution", found[-1]["dag_run_id"]) == "success"
    conf = found[-1]["conf"]
    assert (conf["waiting"], conf["newest_id"], conf["queue_name"]) == (3, left[-1], "e2e_dead")
    assert "plum" not in str(found)
    resolved = queue_conn.execute(
        "SELECT id, resolution FROM messages.message_archive WHERE queue_name = 'e2e_dead' ORDER BY id"
    ).fetchall()
    assert resolved == [(id_, "requeued") for id_ in full] + [(id_, None) for id_ in left]
    until(lambda: statsd.heard("pgqueue.requeued", queue="e2e_dead"), what="the metrics of the run")


def test_the_examples_ask_a_person_before_they_requeue(
    stack: Stack, queue_conn: Connection, collector: tuple[int, list[bytes]]
) -> None:
    for dag_id in ("pgqueue_resolve_causes", "pgqueue_resolve_cause", "pgqueue_reprocess_nightly"):
        stack.client.wait_for_dag(dag_id)
    ids = die(queue_conn, "packing", 2, "no stock left")
    dag_id = "pgqueue_resolve_cause"
    found: list[str] = []

    def asked() -> bool:
        found[:] = [one["dag_run_id"] for one in stack.client.runs(dag_id)]
        tasks = states_of_tasks(stack, dag_id, found[0]) if found else []
        return any(task in tasks for task in (("approve", "deferred"), ("approve", "awaiting_input")))

    until(asked, timeout=PATIENCE, what="a question to a person")
    (run_id,) = found
    assert run_id.endswith(f"__{ids[-1]}")
    assert run(queue_conn, verbs.dead_ids("packing")) == ids, "nothing happens before the answer"
    # A person is slower than this test. A task that resumes before the scheduler has heard of its pause is failed.
    task = f"TaskInstanceKey(dag_id='{dag_id}', task_id='approve', run_id='{run_id}'"
    paused = f"executor event with state success for task instance {task}"
    until(lambda: paused in (stack.logs / "scheduler.log").read_text(), what="the end of the process that asked")
    path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"
    stack.client.patch(path, {"chosen_options": ["Approve"], "params_input": {}})
    until(lambda: run(queue_conn, verbs.dead_ids("packing")) == [], timeout=PATIENCE, what="what was approved")
    again = "SELECT requeued_from FROM messages.message WHERE queue_name = 'packing' ORDER BY 1"
    assert [id_ for (id_,) in queue_conn.execute(again).fetchall()] == ids
    taken = run(queue_conn, verbs.lease("packing", max_messages=5))
    run(queue_conn, verbs.archive(taken[0].lock_token, [message.id for message in taken]))
    assert wait_for_run(stack, dag_id, run_id) == "success"
    nightly = stack.client.trigger("pgqueue_reprocess_nightly")
    assert wait_for_run(stack, "pgqueue_reprocess_nightly", nightly) == "success"

    def told() -> bool:
        """The watcher that notified is in the triggerer, which reports by OpenTelemetry."""
        gauges = metrics_of(collector[1]).get("pgqueue.dead", [])
        return any({"queue": "packing"} in tags_of(gauge) for gauge in gauges)

    until(told, what="the metrics of the triggerer")
