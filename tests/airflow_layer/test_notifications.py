"""Messages from callbacks, and what listeners do in the background."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound
from airflow_provider_pgqueue.dispatch.background import Background
from airflow_provider_pgqueue.notifications.pgqueue import PgQueueNotifier

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


# The notifier ---------------------------------------------------------------------------------------------------------


def test_a_callback_publishes_what_its_templates_make(
    conn_id: str, queue: Queue, conn: Connection, context: dict[str, Any]
) -> None:
    queue("alarms")
    notifier = PgQueueNotifier(queue_name="alarms", message={"day": "{{ day }}"}, topic="{{ ti.task_id }}.failed")
    notifier(context | {"day": "2026-01-01"})
    row = conn.execute("SELECT message, topic, reference FROM messages.message").fetchone()
    assert row == ({"day": "2026-01-01"}, "work.failed", "orders/manual__1/work/-1")


def test_without_a_message_the_body_says_who_called_back(
    conn_id: str, queue: Queue, conn: Connection, context: dict[str, Any]
) -> None:
    queue("alarms")
    PgQueueNotifier(queue_name="alarms")(dict(context))
    dag_run = SimpleNamespace(dag_id="orders", run_id="manual__1")
    PgQueueNotifier(queue_name="alarms")({"dag_run": dag_run, "reason": "timed_out"})
    task = {"dag_id": "orders", "run_id": "manual__1", "task_id": "work", "map_index": -1, "try_number": 1}
    assert bodies(conn) == [task, {"dag_id": "orders", "run_id": "manual__1", "reason": "timed_out"}]


def test_a_notifier_is_awaited_in_the_triggerer(conn_id: str, queue: Queue, conn: Connection) -> None:
    async def notify() -> None:
        await PgQueueNotifier(queue_name=queue("alarms"), message=[1, "late"])

    asyncio.run(notify())
    assert bodies(conn) == [[1, "late"]]


@pytest.mark.parametrize("awaited", [False, True], ids=["called", "awaited"])
def test_a_notifier_that_serves_many_runs_renders_its_templates_for_each(
    conn_id: str, queue: Queue, conn: Connection, context: dict[str, Any], awaited: bool
) -> None:
    queue("alarms")
    notifier = PgQueueNotifier(queue_name="alarms", message={"days": ["{{ day }}"]}, topic="day.{{ day }}")

    async def wait() -> None:
        await notifier

    for day in ("1", "2"):
        notifier.context = context | {"day": day}
        asyncio.run(wait()) if awaited else notifier(notifier.context)
    rows = conn.execute("SELECT message, topic FROM messages.message ORDER BY id").fetchall()
    assert rows == [({"days": ["1"]}, "day.1"), ({"days": ["2"]}, "day.2")]


def test_a_bad_notifier_is_an_error_of_its_callback(conn_id: str, context: dict[str, Any]) -> None:
    with pytest.raises(QueueNotFound):
        PgQueueNotifier(queue_name="nowhere", message=1)(dict(context))
    with pytest.raises(InvalidArgument, match="queue_name is 'No Queue'"):
        PgQueueNotifier(queue_name="{{ name }}", message=1)(context | {"name": "No Queue"})


# The listener ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_work_in_the_background_is_bounded_and_does_not_survive_a_fork() -> None:
    may, done = threading.Event(), []

    def work(one: int) -> None:
        may.wait(60)
        done.append(one)

    background = Background("test", work)
    put = sum(background.put(number) for number in range(10_200))
    assert 10_000 <= put <= 10_001
    assert not background.flush(0)
    child = os.fork()
    if child == 0:
        # Nothing of the parent's waits here, and no lock of its thread is held.
        os._exit(0 if background.flush(0) and background.put(1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    may.set()
    assert background.flush(60)
    assert done == list(range(put))
