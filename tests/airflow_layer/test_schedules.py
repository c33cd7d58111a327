"""Schedules from Airflow: declared by an operator, run by the upkeep operator, or by hand through the hook."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.schedule import PgQueueScheduleOperator
from airflow_provider_pgqueue.operators.upkeep import PgQueueUpkeepOperator
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


def operator(**changes: Any) -> PgQueueScheduleOperator:
    arguments = {"schedule_name": "nightly", "cron": "0 3 * * *", "queue_name": "orders", "message": {"n": 1}}
    return PgQueueScheduleOperator(task_id="declare", **(arguments | changes))


def test_the_operator_declares_a_schedule_once_and_changes_it_then(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    assert run(operator()) == {"schedule_name": "nightly", "new": True}
    assert run(operator()) == {"schedule_name": "nightly", "new": False}
    run(operator(message=["changed"], time_zone="Europe/Berlin", priority=7, headers={"h": 1}, paused=True))
    row = conn.execute("SELECT message, time_zone, priority, headers, paused FROM messages.schedule").fetchall()
    assert row == [(["changed"], "Europe/Berlin", 7, {"h": 1}, True)]


def test_the_operator_does_not_log_the_body(
    conn_id: str, queue: Queue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")
    with caplog.at_level(logging.DEBUG):
        run(operator(message="SECRET"))
    assert "SECRET" not in caplog.text


def test_templates_of_the_declaration_are_rendered(conn_id: str) -> None:
    declared = operator(schedule_name="of_{{ team }}", message={"team": "{{ team }}"})
    declared.render_template_fields({"team": "a"})  # type: ignore[arg-type]
    assert (declared.schedule_name, declared.message) == ("of_a", {"team": "a"})


def test_the_upkeep_operator_publishes_what_is_due_where_there_is_no_pg_cron(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    run(operator(cron="* * * * *"))
    conn.execute("UPDATE messages.schedule SET checked_until = clock_timestamp() - interval '5 minutes'")
    done = run(PgQueueUpkeepOperator(task_id="upkeep", skip_if_pg_cron=True))
    assert (done["scheduled"], done["archived"]) == (1, 0)
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [({"n": 1},)]


def test_the_example_declares_its_schedule(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    example = runpy.run_path(str(ROOT / "dags_examples" / "pgqueue_schedules.py"))["dag"]
    assert [run(task)["new"] for task in example.tasks] == [True]
    assert [schedule.queue_name for schedule in PgQueueHook(conn_id).run(verbs.schedules())] == ["orders"]
