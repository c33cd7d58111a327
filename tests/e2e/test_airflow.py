"""The provider in a real Airflow: what wakes, what survives, what it costs."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import yaml
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core import run, verbs
from tests.e2e.conftest import PATIENCE, places_of, states_of_tasks, until, wait_for_run
from tests.e2e.evidence import evidence
from tests.sinks import Statsd
from tests.test_compose import health_check
from tools import ROOT
from tools.airflow import Stack
from tools.postgres import Cluster

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]


@pytest.mark.parametrize("component", ["scheduler", "triggerer", "dag-processor"])
def test_the_health_checks_of_docker_find_the_heartbeats(stack: Stack, component: str) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    until(lambda: health_check(compose, component, stack.url) == 0, what=f"the heartbeat of {component}")


def create(conn: Connection, queue_name: str) -> None:
    conn.execute("SELECT messages.create_queue(%s)", [queue_name])


def publish(conn: Connection, queue_name: str, number: int = 1) -> None:
    """Publish messages at once, so that whoever the first one wakes finds them all."""
    run(conn, verbs.publish_batch(queue_name, [{"order_id": n} for n in range(number)]))


def results(conn: Connection, queue_name: str) -> dict[str, int]:
    rows = conn.execute(
        "SELECT result, count(*) FROM messages.message_archive WHERE queue_name = %s GROUP BY 1", [queue_name]
    ).fetchall()
    return dict(rows)


def depth(conn: Connection, queue_name: str) -> int:
    row = conn.execute("SELECT count(*) FROM messages.message WHERE queue_name = %s", [queue_name]).fetchone()
    assert row
    return int(row[0])


def test_a_sensor_whose_connection_is_missing_fails_and_a_failed_test_says_so(stack: Stack) -> None:
    began_at = time.time()
    run_id = start(stack, "e2e_nowhere")
    assert wait_for_run(stack, "e2e_nowhere", run_id) == "failed"
    said = dict(evidence(stack, began_at))
    assert re.search(rf"e2e_nowhere {run_id} failed .* wait -1 1 .* failed", said["Airflow: runs and their tasks"])
    log = said[f"Airflow: the end of home/logs/dag_id=e2e_nowhere/run_id={run_id}/task_id=wait/attempt=1.log"]
    assert "Airflow has no connection 'nowhere'" in log
    assert f"Marking run <DagRun e2e_nowhere @ None: {run_id}" in said["Airflow: the end of logs/scheduler.log"]
    assert {"api-server", "scheduler", "triggerer", "dag-processor"} <= {Path(title).stem for title in said}
    # Before Airflow 3.3 it begins in a worker, which finds no connection either.
    log = stack.client.log("e2e_nowhere", run_id, "wait")
    values = [value for line in log.splitlines() for value in re.findall(r'"exc_value": "((?:[^"\\]|\\.)*)"', line)]
    assert any("Airflow has no connection 'nowhere'. Define it" in value for value in values), log


def start(stack: Stack, dag_id: str) -> str:
    stack.client.wait_for_dag(dag_id)
    return stack.client.trigger(dag_id)


def states(stack: Stack, dag_id: str, run_id: str, task_id: str) -> list[str]:
    return [state or "none" for name, state in states_of_tasks(stack, dag_id, run_id) if name == task_id]


def wait_until_deferred(stack: Stack, dag_id: str, run_id: str, task_id: str, number: int = 1) -> None:
    until(
        lambda: states(stack, dag_id, run_id, task_id).count("deferred") == number,
        timeout=PATIENCE,
        what=f"{number} deferred {task_id} of {dag_id}",
        tell=lambda: f"but they are {states(stack, dag_id, run_id, task_id)}",
    )


def wait_for_success(stack: Stack, dag_id: str, run_id: str) -> None:
    assert wait_for_run(stack, dag_id, run_id) == "success"


def test_the_setup_dag_says_who_runs_maintenance(stack: Stack) -> None:
    run_id = stack.client.runs("pgqueue_setup")[0]["dag_run_id"]
    assert stack.client.xcom("pgqueue_setup", run_id, "install")["maintenance_mode"] == "airflow"


def test_every_dag_is_parsed_without_an_error(stack: Stack) -> None:
    assert stack.client.import_errors() == []


def test_a_notify_ends_a_deferred_sensor_without_a_worker(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_sensor")
    run_id = start(stack, "e2e_sensor")
    wait_until_deferred(stack, "e2e_sensor", run_id, "wait")
    publish(queue_conn, "e2e_sensor")
    wait_for_success(stack, "e2e_sensor", run_id)
    assert stack.client.xcom("e2e_sensor", run_id, "read") == 1


@pytest.mark.airflow_since("3.3")
def test_a_sensor_begins_and_ends_in_the_triggerer_and_says_so(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_begin")
    run_id = start(stack, "e2e_begin")
    wait_until_deferred(stack, "e2e_begin", run_id, "wait")
    queue_conn.execute("SELECT messages.publish('e2e_begin', '2', topic => 'a.b')")
    wait_for_success(stack, "e2e_begin", run_id)
    (task,) = [one for one in stack.client.task_instances("e2e_begin", run_id) if one["task_id"] == "wait"]
    assert (task["try_number"], task["pid"], task["hostname"]) == (1, None, "")
    notification = stack.client.xcom("e2e_begin", run_id, "read")
    assert (notification["ready"], notification["topics"]) == (1, ["a.b"])


def test_kill_9_of_the_triggerer_loses_nothing(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_sensor")
    queue_conn.execute("SELECT messages.consume('e2e_sensor', 100)")
    run_id = start(stack, "e2e_sensor")
    wait_until_deferred(stack, "e2e_sensor", run_id, "wait")
    stack.kill("triggerer", signal.SIGKILL)
    publish(queue_conn, "e2e_sensor")
    stack.restart("triggerer")
    wait_for_success(stack, "e2e_sensor", run_id)


def test_a_burst_and_then_silence_leaves_no_message_unhandled(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_burst")
    stack.client.wait_for_dag("e2e_burst")
    for _ in range(40):
        publish(queue_conn, "e2e_burst")
    until(lambda: depth(queue_conn, "e2e_burst") == 0, timeout=PATIENCE, what="an empty queue")
    assert results(queue_conn, "e2e_burst") == {"success": 40}


@pytest.mark.parametrize(("dag_id", "first"), [("e2e_race", 0.0), ("e2e_race_outlets", 0.25)])
def test_a_sensor_woken_at_any_moment_after_it_started_never_fails(
    stack: Stack, queue_conn: Connection, dag_id: str, first: float
) -> None:
    """Twice 12 sensors, each notified at another time of six seconds: while it starts, defers, and is reported."""
    for number in range(12):
        create(queue_conn, f"{dag_id}_{number}")
    run_id = start(stack, dag_id)
    woken_after: dict[int, float] = {}
    with psycopg.connect(stack.metadata, autocommit=True) as metadata:

        def notify_those_that_started() -> bool:
            started = metadata.execute(
                "SELECT map_index, extract(epoch FROM clock_timestamp() - start_date)::float FROM task_instance"
                " WHERE run_id = %s AND task_id = 'wait' AND map_index >= 0 AND start_date IS NOT NULL",
                [run_id],
            ).fetchall()
            for number, ago in started:
                if number not in woken_after:
                    delay = timedelta(seconds=max(0.0, first + number * 0.5 - ago))
                    queue_conn.execute("SELECT messages.publish(%s, '1', delay => %s)", [f"{dag_id}_{number}", delay])
                    woken_after[number] = ago + delay.total_seconds()
            return len(woken_after) == 12

        until(notify_those_that_started, timeout=PATIENCE, what="12 started sensors", pause=0.02)
    state = wait_for_run(stack, dag_id, run_id)
    assert states(stack, dag_id, run_id, "wait") == ["success"] * 12
    assert state == "success"
    assert sum(0.5 < seconds < 6.5 for seconds in woken_after.values()) >= 9, woken_after


def test_all_waiting_tasks_use_one_listening_connection(stack: Stack, queue_conn: Connection, cluster: Cluster) -> None:
    create(queue_conn, "e2e_many")
    run_id = start(stack, "e2e_many")
    wait_until_deferred(stack, "e2e_many", run_id, "wait", 2)

    def sessions() -> list[Any]:
        return queue_conn.execute(
            "SELECT application_name, state, query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()

    # Next to it the tasks that run maintenance and the like have one for a short time.
    until(lambda: len(sessions()) == 1, what="a single session", tell=sessions)
    publish(queue_conn, "e2e_many")
    wait_for_success(stack, "e2e_many", run_id)


def test_a_consumer_that_waits_resumes_and_drains(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_consume")
    run_id = start(stack, "e2e_consume_waiting")
    wait_until_deferred(stack, "e2e_consume_waiting", run_id, "consume")
    publish(queue_conn, "e2e_consume", 3)
    wait_for_success(stack, "e2e_consume_waiting", run_id)
    assert results(queue_conn, "e2e_consume") == {"success": 3}


def test_a_sensor_that_waited_tells_its_outlets_as_one_that_found_work_does(
    stack: Stack, queue_conn: Connection
) -> None:
    create(queue_conn, "e2e_outlets")
    stack.client.wait_for_dag("e2e_after_outlets")
    run_id = start(stack, "e2e_outlets")
    wait_until_deferred(stack, "e2e_outlets", run_id, "wait")
    publish(queue_conn, "e2e_outlets")
    wait_for_success(stack, "e2e_outlets", run_id)
    until(lambda: depth(queue_conn, "e2e_outlets") == 2, timeout=PATIENCE, what="the run that the asset starts")


def test_results_of_tasks_and_queries_in_files_are_published(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_publish")
    run_id = start(stack, "e2e_publish")
    wait_for_success(stack, "e2e_publish", run_id)
    rows = queue_conn.execute("SELECT message FROM messages.message WHERE queue_name = 'e2e_publish'").fetchall()
    assert sorted(map(str, (body for (body,) in rows))) == ["e2e_publish", "e2e_publish", "{'n': 1}", "{{ 7*7 }}"]


def test_a_task_that_is_marked_as_failed_inside_a_long_call_frees_its_messages(
    stack: Stack, queue_conn: Connection
) -> None:
    create(queue_conn, "e2e_hang")
    publish(queue_conn, "e2e_hang", 6)
    run_id = start(stack, "e2e_hang")
    held = "SELECT count(*) FROM messages.message WHERE queue_name = 'e2e_hang' AND lock_expires_at > now()"
    until(lambda: queue_conn.execute(held).fetchone() == (6,), timeout=PATIENCE, what="six leased messages")
    stack.client.patch(f"dags/e2e_hang/dagRuns/{quote(run_id)}/taskInstances/consume", {"new_state": "failed"})
    until(lambda: queue_conn.execute(held).fetchone() == (0,), timeout=PATIENCE, what="free messages")
    rows = queue_conn.execute("SELECT attempts FROM messages.message WHERE queue_name = 'e2e_hang' ORDER BY id")
    assert rows.fetchall() == [(1,)] + [(0,)] * 5


def test_a_hostile_body_reaches_no_log_no_event_and_no_xcom(
    stack: Stack, queue_conn: Connection, cluster: Cluster
) -> None:
    """It is no order: the example with a sensor rejects it, and handles the others."""
    body = {"canary": "HOSTILE-CANARY", "jinja": "{{ 7*7 }}", "__classname__": "x", "__type": "dict", "__var": {}}
    run_id = start(stack, "pgqueue_consume_deferrable")
    wait_until_deferred(stack, "pgqueue_consume_deferrable", run_id, "wait")
    run(queue_conn, verbs.publish_batch("orders", [{"order_id": 1}, body, {"order_id": 2}]))
    wait_for_success(stack, "pgqueue_consume_deferrable", run_id)
    archived = "SELECT result, message FROM messages.message_archive WHERE queue_name = 'orders' ORDER BY id"
    assert queue_conn.execute(archived).fetchall() == [
        ("success", {"order_id": 1}),
        ("rejected", body),
        ("success", {"order_id": 2}),
    ]
    assert places_of("HOSTILE-CANARY", stack, cluster) == []


def test_maintenance_example_archives_what_expired_and_reports(
    stack: Stack, queue_conn: Connection, statsd: Statsd
) -> None:
    queue_conn.execute("SELECT messages.create_queue('e2e_maintenance', max_attempts => 1)")
    publish(queue_conn, "e2e_maintenance")
    queue_conn.execute("SELECT messages.lease('e2e_maintenance', 1, '1 ms', 'nobody')")
    wait_for_success(stack, "pgqueue_maintenance", start(stack, "pgqueue_maintenance"))
    until(
        lambda: results(queue_conn, "e2e_maintenance") == {"lock_expired": 1}, timeout=PATIENCE, what="maintenance DAG"
    )
    until(lambda: statsd.heard("pgqueue.leased_now", queue="e2e_maintenance"), timeout=PATIENCE, what="its metrics")


def test_flights_are_published_consumed_resolved_and_requeued(
    stack: Stack, queue_conn: Connection, cluster: Cluster
) -> None:
    """The main job, small, with one consumer killed in the middle."""
    for dag_id in ("pgqueue_consume_on_event", "pgqueue_resolve_dead", "pgqueue_requeue_dead"):
        stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger("pgqueue_publish", {"flights": 2_000})
    with psycopg.connect(cluster.dsn("e2e_queue")) as held:
        # Nobody finishes a batch until one has been killed amid it.
        held.execute("LOCK TABLE flights.departure IN SHARE MODE")
        until(lambda: kill_a_consumer(queue_conn), timeout=PATIENCE, what="a consumer to kill")
    wait_for_success(stack, "pgqueue_publish", run_id)
    until(lambda: depth(queue_conn, "flights") == 0, timeout=PATIENCE, what="consumed flights")
    # What failed is requeued each minute; and now, so that nobody waits for the next one.
    stack.client.trigger("pgqueue_requeue_dead")
    until(
        lambda: open(queue_conn) == 0 and depth(queue_conn, "flights") == 0,
        timeout=2 * PATIENCE,
        what="resolution",
        tell=lambda: [results(queue_conn, "flights"), open(queue_conn), depth(queue_conn, "flights")],
    )
    with queue_conn.cursor(row_factory=dict_row) as cursor:
        account = cursor.execute(
            """
            SELECT count(*) FILTER (WHERE requeued_from IS NULL) AS published,
                   count(*) - count(DISTINCT id) AS twice,
                   count(*) FILTER (WHERE result <> 'success' AND resolution IS NULL) AS open,
                   count(*) FILTER (WHERE result = 'success') AS success,
                   (SELECT count(*) FROM flights.departure) AS departures
              FROM messages.message_archive WHERE queue_name = 'flights'
            """
        ).fetchone()
    assert account is not None
    assert account["published"] == 2_000
    assert account["twice"] == account["open"] == 0
    assert account["success"] == account["departures"]


def kill_a_consumer(conn: Connection) -> bool:
    holders = conn.execute(
        "SELECT DISTINCT locked_by FROM messages.message WHERE queue_name = 'flights' AND lock_expires_at > now()"
    ).fetchall()
    for (holder,) in holders:
        if found := re.search(r"(\d+)@", holder):
            os.kill(int(found[1]), signal.SIGKILL)
            # As if its half minute were over: whoever still works takes over what it held.
            ends = "UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE locked_by = %s"
            conn.execute(ends, [holder])
            return True
    return False


def open(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM messages.dead_message WHERE queue_name = 'flights'").fetchone()
    assert row
    return int(row[0])
