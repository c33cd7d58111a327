"""Waiting for messages, and callbacks, on a real Airflow."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, Message, Rejected, run, verbs
from tests.e2e.conftest import PATIENCE, places_of, states_of_tasks, until, wait_for_run
from tools.airflow import Stack
from tools.postgres import Cluster

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]
SECRET = "pear-in-a-question"


def test_outcomes_end_one_task_in_the_triggerer_and_fail_another_whose_log_says_why(
    stack: Stack, queue_conn: Connection, cluster: Cluster
) -> None:
    run(queue_conn, verbs.create_queue("e2e_questions"))
    stack.client.wait_for_dag("e2e_ask")
    run_id = stack.client.trigger("e2e_ask", conf={"secret": SECRET})

    def tasks() -> dict[str, dict[str, Any]]:
        return {one["task_id"]: one for one in stack.client.task_instances("e2e_ask", run_id)}

    def both_wait() -> bool:
        now = dict(states_of_tasks(stack, "e2e_ask", run_id))
        assert "failed" not in now.values(), now
        return (now.get("finished"), now.get("hear")) == ("deferred", "deferred")

    until(both_wait, timeout=PATIENCE, what="tasks that wait for their messages", tell=tasks)

    def answer(message: Message) -> Rejected | None:
        return Rejected(SECRET) if message.reference == run_id else None

    Consumer(queue_name="e2e_questions", handle=answer).drain(queue_conn)
    assert wait_for_run(stack, "e2e_ask", run_id) == "failed"
    ended = tasks()
    assert [(ended[name]["state"], ended[name]["try_number"]) for name in ("hear", "finished")] == [
        ("success", 1),
        ("failed", 1),
    ]
    # Text for tasks; the API reads it as an object.
    assert stack.client.xcom("e2e_ask", run_id, "hear")["success"] == 2
    assert f"messages with reference '{run_id}'; found 1 rejected" in stack.client.log("e2e_ask", run_id, "finished")
    # The run has its parameters, and the log of the server what is wrong with statements.
    assert places_of(SECRET, stack, cluster) == ["dag_run"]


def test_in_dag_test_a_sensor_waits_and_its_counts_reach_the_next_task(stack: Stack, queue_conn: Connection) -> None:
    run(queue_conn, verbs.create_queue("e2e_in_line"))
    stack.client.wait_for_dag("e2e_in_line")
    command = [sys.executable, "-c", "from e2e_reply import in_line; print('ENDED', in_line.test().state)"]
    with (
        subprocess.Popen(
            command, cwd=stack.dags, env=stack.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as program,
        ThreadPoolExecutor(1) as pool,
    ):
        said = pool.submit(lambda: program.communicate()[0])
        # The sensor has looked, and its trigger waits.
        until(
            lambda: (
                queue_conn.execute(
                    "SELECT FROM pg_stat_activity WHERE application_name = 'pgqueue:listener'"
                    " AND query LIKE '%outcome_counts%' AND pid <> pg_backend_pid()"
                ).rowcount
                or said.done()
            ),
            timeout=PATIENCE,
            what="a trigger that looks",
        )
        Consumer(queue_name="e2e_in_line", handle=lambda message: None).drain(queue_conn)
        text = said.result()
    assert "COUNTED 2 0" in text, text[-3000:]
    assert "ENDED success" in text.replace("DagRunState.SUCCESS", "success")


def test_the_example_gets_its_answer(stack: Stack) -> None:
    stack.client.wait_for_dag("pgqueue_request_reply")
    run_id = stack.client.trigger("pgqueue_request_reply")
    assert wait_for_run(stack, "pgqueue_request_reply", run_id) == "success"
    assert stack.client.xcom("pgqueue_request_reply", run_id, "book") == 99


def test_a_task_that_fails_calls_back(stack: Stack, queue_conn: Connection) -> None:
    stack.client.wait_for_dag("pgqueue_notify")
    run_id = stack.client.trigger("pgqueue_notify")
    assert wait_for_run(stack, "pgqueue_notify", run_id) == "failed"
    alarm = "SELECT message ->> 'task_id', topic FROM messages.message WHERE queue_name = 'alarms' AND reference = %s"
    found = queue_conn.execute(alarm, [f"pgqueue_notify/{run_id}/work/-1"]).fetchall()
    assert found == [("work", "pgqueue_notify.failed")]


def test_a_publish_task_that_is_cleared_publishes_again(stack: Stack, queue_conn: Connection) -> None:
    run(queue_conn, verbs.create_queue("e2e_cleared"))
    stack.client.wait_for_dag("e2e_cleared")
    run_id = stack.client.trigger("e2e_cleared")
    for number in (1, 2):
        assert wait_for_run(stack, "e2e_cleared", run_id) == "success"
        assert stack.client.xcom("e2e_cleared", run_id, "publish")["published"] == 1
        assert queue_conn.execute(
            "SELECT count(*) FROM messages.message WHERE reference = %s", [f"e2e_cleared/{run_id}/publish/-1"]
        ).fetchone() == (number,)
        if number == 1:
            stack.client.clear("e2e_cleared", run_id, "publish")
