"""What becomes of dead messages, on a real Airflow: a run for each cause, and a person who approves it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.message import Dispatch
from tests.e2e.conftest import PATIENCE, until
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


def runs(conn: Connection, queue_name: str) -> list[tuple[str, str | None]]:
    return conn.execute(
        "SELECT run_id, result FROM messages.dispatch WHERE queue_name = %s AND fingerprint IS NOT NULL"
        " ORDER BY dispatch_id",
        [queue_name],
    ).fetchall()


def dispatch(stack: Stack) -> dict[str, int]:
    for dag_id in ("e2e_remedy_dispatch", "e2e_remedy"):
        stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger("e2e_remedy_dispatch")
    assert stack.client.wait_for_run("e2e_remedy_dispatch", run_id) == "success"
    found: dict[str, int] = stack.client.xcom("e2e_remedy_dispatch", run_id, "dispatch")
    return found


def test_each_cause_has_a_run_again_when_it_is_lost_or_failed_and_each_message_one_remedy(
    stack: Stack, queue_conn: Connection, statsd: Statsd
) -> None:
    run(queue_conn, verbs.create_queue("e2e_dead"))
    ids = die(queue_conn, "e2e_dead", 3, "disk full") + die(queue_conn, "e2e_dead", 2, "fail once")
    # A dispatcher that died before it started the runs; and a run that Airflow knew and somebody deleted.
    lost, other = run(queue_conn, verbs.dispatch_dead("e2e_dead", "e2e_remedy"))
    run(queue_conn, verbs.start_dispatch(lost.dispatch_id))
    done = dispatch(stack)
    assert (done["lost"], done["started"]) == (1, 2)

    def ended(number: int) -> list[str | None]:
        until(
            lambda: [result for _, result in runs(queue_conn, "e2e_dead") if result][number - 1 :],
            timeout=PATIENCE,
            what=f"{number} runs that ended",
        )
        return [result for _, result in runs(queue_conn, "e2e_dead")]

    assert sorted(map(str, ended(3))) == ["failed", "lost", "success"]
    assert dispatch(stack)["started"] == 1
    assert sorted(map(str, ended(4))) == ["failed", "lost", "success", "success"]
    assert dispatch(stack) == {}
    remedied = queue_conn.execute(
        "SELECT id, remedy FROM messages.message_archive WHERE queue_name = 'e2e_dead' ORDER BY id"
    ).fetchall()
    assert remedied == [(id_, "requeued") for id_ in ids]
    copies = queue_conn.execute("SELECT requeued_from FROM messages.message WHERE queue_name = 'e2e_dead'").fetchall()
    assert sorted(id_ for (id_,) in copies) == ids
    conf = stack.client.run("e2e_remedy", other.run_id)["conf"]["pgqueue"]
    assert (conf["ids"], conf["fingerprint"]) == (other.ids, other.fingerprint)
    assert "plum" not in str(conf)
    until(lambda: statsd.heard("pgqueue.requeued", queue="e2e_dead"), what="the metrics of the run")
    open_now = {"queue": "e2e_dead", "dag_id": "e2e_remedy"}
    until(lambda: statsd.heard("pgqueue.dispatches_open", **open_now), what="the metrics of the dispatcher")


def test_the_examples_ask_a_person_before_they_requeue(
    stack: Stack, queue_conn: Connection, collector: tuple[int, list[bytes]]
) -> None:
    for dag_id in ("pgqueue_remediate_causes", "pgqueue_remediate_cause", "pgqueue_reprocess_nightly"):
        stack.client.wait_for_dag(dag_id)
    ids = die(queue_conn, "packing", 2, "no stock left")
    found: list[Dispatch] = []

    def asked() -> bool:
        found[:] = run(queue_conn, verbs.open_dispatches("packing", "pgqueue_remediate_cause"))
        if not found or found[0].started_at is None:
            return False
        tasks = stack.client.task_instances(found[0].dag_id, found[0].run_id)
        return any(task["task_id"] == "approve" and task["state"] in ("deferred", "awaiting_input") for task in tasks)

    until(asked, timeout=PATIENCE, what="a question to a person")
    (one,) = found
    assert one.ids == ids
    assert run(queue_conn, verbs.dead_ids("packing")) == ids, "nothing happens before the answer"
    # A person is slower than this test. A task that resumes before the scheduler has heard of its pause is failed.
    task = f"TaskInstanceKey(dag_id='{one.dag_id}', task_id='approve', run_id='{one.run_id}'"
    paused = f"executor event with state success for task instance {task}"
    until(lambda: paused in (stack.logs / "scheduler.log").read_text(), what="the end of the process that asked")
    path = f"dags/{one.dag_id}/dagRuns/{quote(one.run_id)}/taskInstances/approve/-1/hitlDetails"
    stack.client.patch(path, {"chosen_options": ["Approve"], "params_input": {}})
    until(lambda: run(queue_conn, verbs.dead_ids("packing")) == [], timeout=PATIENCE, what="what was approved")
    again = "SELECT requeued_from FROM messages.message WHERE queue_name = 'packing' ORDER BY 1"
    assert [id_ for (id_,) in queue_conn.execute(again).fetchall()] == ids
    taken = run(queue_conn, verbs.lease("packing", max_messages=5))
    run(queue_conn, verbs.archive(taken[0].lock_token, [message.id for message in taken]))
    assert stack.client.wait_for_run(one.dag_id, one.run_id) == "success"
    nightly = stack.client.trigger("pgqueue_reprocess_nightly")
    assert stack.client.wait_for_run("pgqueue_reprocess_nightly", nightly) == "success"

    def told() -> bool:
        """The watcher that rang is in the triggerer, which reports by OpenTelemetry."""
        gauges = metrics_of(collector[1]).get("pgqueue.dead", [])
        return any({"queue": "packing"} in tags_of(gauge) for gauge in gauges)

    until(told, what="the metrics of the triggerer")
