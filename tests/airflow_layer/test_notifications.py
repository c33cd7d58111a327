"""Messages from callbacks, and the states of runs and tasks as messages."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.models.taskinstance import TaskInstance
from sqlalchemy.orm.attributes import manager_of_class

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound
from airflow_provider_pgqueue.notifications.pgqueue import PgQueueNotifier
from airflow_provider_pgqueue.plugins import state_listener
from airflow_provider_pgqueue.plugins.background import LAST_SECONDS, Background
from tests.waiting import until

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


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set options of the section: `configured(states_queue="states")`."""

    def configure(**options: str) -> None:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__PGQUEUE__{name.upper()}", value)
        state_listener.settings.cache_clear()
        state_listener._said.clear()

    # What an earlier test told must not be told while this one looks.
    assert state_listener._states.flush(60)
    configure()
    yield configure
    state_listener.settings.cache_clear()


def a_run(dag_id: str = "orders") -> SimpleNamespace:
    return SimpleNamespace(dag_id=dag_id, run_id="manual__1", run_type="manual", logical_date=None, conf={"a": "kiwi"})


def a_task(dag_id: str = "orders") -> SimpleNamespace:
    return SimpleNamespace(dag_id=dag_id, run_id="manual__1", task_id="work", map_index=-1, try_number=2)


def test_states_become_messages_that_consumers_can_choose_from(
    conn_id: str, queue: Queue, conn: Connection, configured: Callable[..., None]
) -> None:
    configured(states_queue=queue("states"), states_of="dag_run, task")
    state_listener.on_dag_run_running(a_run(), "")
    state_listener.on_task_instance_failed(None, a_task(), "kiwi")
    state_listener.on_dag_run_failed(a_run(), "kiwi")
    until(lambda: len(bodies(conn)) == 3)
    rows = conn.execute("SELECT topic, reference FROM messages.message ORDER BY id").fetchall()
    run, task = "orders/manual__1", "orders/manual__1/work/-1"
    assert rows == [("dag_run.running", run), ("task.failed", task), ("dag_run.failed", run)]
    assert "kiwi" not in str(bodies(conn))
    assert bodies(conn)[1].items() >= {"kind": "task", "state": "failed", "task_id": "work", "try_number": 2}.items()


def test_a_task_waits_until_its_state_is_published_because_its_process_ends(
    conn_id: str, queue: Queue, conn: Connection, configured: Callable[..., None]
) -> None:
    configured(states_queue=queue("states"), states_of="task")
    state_listener.on_task_instance_success(None, a_task())
    assert [body["state"] for body in bodies(conn)] == ["success"]


def test_the_scheduler_and_the_api_server_never_wait_for_the_state_of_a_task(
    conn_id: str, queue: Queue, conn: Connection, configured: Callable[..., None]
) -> None:
    configured(states_queue=queue("states"), states_of="task")
    row = manager_of_class(TaskInstance).new_instance()  # as SQLAlchemy makes it of a row
    vars(row).update(vars(a_task()))
    with conn.transaction():
        conn.execute("LOCK TABLE messages.message")
        begun = time.monotonic()
        for hear in (state_listener.on_task_instance_success, state_listener.on_task_instance_skipped):
            hear(None, row)
        state_listener.on_task_instance_failed(None, row, "kiwi")
        # Those of a task would wait for as long as each of them may.
        assert time.monotonic() - begun < LAST_SECONDS
    until(lambda: [body["state"] for body in bodies(conn)] == ["success", "skipped", "failed"])


def test_patterns_choose_the_dags(
    conn_id: str, queue: Queue, conn: Connection, configured: Callable[..., None]
) -> None:
    queue("states")
    for patterns, wanted in (("", "ab"), ("a", "a"), ("!a", "b"), ("*,!b", "a"), ("!*,b", "b"), ("c*", "")):
        configured(states_queue="states", states_of="task", states_dags=patterns)
        for dag_id in "ab":
            state_listener.on_task_instance_skipped(None, a_task(dag_id))
        assert "".join(body["dag_id"] for body in bodies(conn)) == wanted, patterns
        conn.execute("DELETE FROM messages.message")


def test_nothing_is_published_unless_a_queue_is_named(
    conn_id: str, queue: Queue, conn: Connection, configured: Callable[..., None]
) -> None:
    state_listener.on_task_instance_success(None, a_task())
    configured(states_queue=queue("states"))
    state_listener.on_task_instance_success(None, a_task())
    assert state_listener._states.flush(5)
    assert bodies(conn) == []


def test_a_database_that_is_away_costs_the_scheduler_nothing_and_one_line_of_its_log(
    airflow_connection: Callable[..., str], configured: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    airflow_connection("host=127.0.0.1 port=1 user=nobody dbname=nowhere")
    configured(states_queue="states", states_of="dag_run,task")
    state_listener.on_dag_run_success(a_run(), "")  # the first of a process imports
    begun = time.thread_time()
    for _ in range(100):
        state_listener.on_dag_run_success(a_run(), "")
    # A try to connect would cost a hundred times as much; what Python collects meanwhile is no part of it.
    assert time.thread_time() - begun < 3
    assert state_listener._states.flush(60)
    state_listener.on_dag_run_success(a_run(), "")
    assert state_listener._states.flush(60)
    assert [record.levelno for record in caplog.records if "states" in record.getMessage()] == [logging.WARNING]


def test_nothing_that_a_state_has_can_hurt_who_tells_of_it(
    conn_id: str, queue: Queue, configured: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    class Lazy:
        """Has its fields in the database, which is asked through somebody's session."""

        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    configured(states_queue=queue("states"), states_of="dag_run,task")
    state_listener.on_dag_run_success(Lazy(), "")
    state_listener.on_dag_run_success(Lazy(), "")
    assert caplog.text.count("a state of a dag_run is lost") == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_work_in_the_background_is_bounded_and_does_not_survive_a_fork() -> None:
    may, done = threading.Event(), []

    def work(some: list[int]) -> None:
        may.wait(60)
        done.extend(some)

    background = Background("test", work, batch=100)
    put = sum(background.put(number) for number in range(10_200))
    assert 10_000 <= put <= 10_100
    assert not background.flush(0)
    child = os.fork()
    if child == 0:
        # Nothing of the parent's waits here, and no lock of its thread is held.
        os._exit(0 if background.flush(0) and background.put(1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    may.set()
    assert background.flush(60)
    assert done == list(range(put))
