"""The sensors: look first, then wait in the triggerer and end there."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset
from airflow.sdk.execution_time.task_runner import _defer_task
from structlog import get_logger

from airflow_provider_pgqueue.core import ConnectionFailed, Rejected, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.notification import SAFE_TO_RESUME
from tests.airflow_layer.airflow_versions import (
    AIRFLOW,
    AirflowException,
    AirflowSensorTimeout,
    DagSerialization,
    TaskDeferralTimeout,
    TaskDeferred,
)
from tests.airflow_layer.test_triggers import as_task, take, within
from tests.test_bad_input import TASKS

Queue = Callable[..., str]
Run = Callable[..., Any]


def test_a_sensor_returns_the_notification_at_once_when_there_is_work(conn_id: str, queue: Queue, run: Run) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), "{{ secret }}", topic="shop.order")
    notification = json.loads(run(PgQueueMessageSensor(task_id="wait", queue_name="orders")))
    assert notification.keys() == {"queue_name", "ready", "oldest_age", "topics"}
    assert (notification["ready"], notification["topics"]) == (1, ["shop.order"])


def test_a_sensor_defers_to_a_trigger_that_ends_the_task(conn_id: str, queue: Queue, run: Run) -> None:
    sensor = PgQueueMessageSensor(
        task_id="wait", queue_name=queue("orders"), min_messages=3, max_wait=timedelta(minutes=1), timeout=60
    )
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    expected = PgQueueMessageTrigger(queue_name="orders", min_messages=3, max_wait=60.0, end_task=True, for_task=True)
    assert deferred.value.trigger.serialize() == expected.serialize()
    assert deferred.value.timeout == timedelta(seconds=60)


def test_fewer_messages_than_asked_for_are_enough_when_the_oldest_waited_long(
    conn_id: str, queue: Queue, run: Run
) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)
    enough = PgQueueMessageSensor(task_id="wait", queue_name="orders", min_messages=2, max_wait=0)
    assert json.loads(run(enough))["ready"] == 1
    with pytest.raises(TaskDeferred):
        run(PgQueueMessageSensor(task_id="patient", queue_name="orders", min_messages=2, max_wait=60))


def test_a_paused_queue_is_no_work(conn_id: str, queue: Queue, run: Run) -> None:
    PgQueueHook(conn_id).publish(queue("orders", paused=True), 1)
    with pytest.raises(TaskDeferred):
        run(PgQueueMessageSensor(task_id="wait", queue_name="orders"))


def test_a_dead_message_sensor_sees_its_results_only_and_nothing_that_is_held(
    conn_id: str, queue: Queue, run: Run
) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    with hook.lease("orders") as lease:
        lease.settle({lease[0]: Rejected("invalid")})
    (cause,) = run(PgQueueDeadMessageSensor(task_id="dead", queue_name="orders", results=["rejected"]))
    assert cause.keys() == {"queue_name", "result", "fingerprint", "waiting", "first_at", "last_at", "newest_id"}
    assert (cause["queue_name"], cause["waiting"], cause["newest_id"]) == ("orders", 1, lease[0].id)
    with pytest.raises(TaskDeferred):
        run(PgQueueDeadMessageSensor(task_id="failed", queue_name="orders", results=["failed"]))
    hook.run(verbs.lease_dead("orders"))
    with pytest.raises(TaskDeferred):
        run(PgQueueDeadMessageSensor(task_id="held", queue_name="orders"))


def test_a_dead_message_sensor_returns_every_cause_for_mapped_tasks(conn_id: str, queue: Queue, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    queue("orders")
    sensor = PgQueueDeadMessageSensor(task_id="dead", queue_name="orders")
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    _, arguments = deferred.value.trigger.serialize()
    assert (arguments["end_task"], arguments["notify_after"]) == (False, SAFE_TO_RESUME)
    assert run(sensor, "execute_complete", event={}) == [], "somebody else resolved them"
    # Letters, as a fingerprint leaves out numbers.
    for letter in "abcdefghijklmnopqrstuvwxyz":
        hook.publish("orders", letter)
    with hook.lease("orders", max_messages=26) as lease:
        lease.settle({message: Rejected(f"no {message.body}") for message in lease.held})
    causes = run(sensor, "execute_complete", event={})
    assert len({cause["fingerprint"] for cause in causes}) == 26
    assert json.loads(json.dumps(causes)) == causes
    with DAG("d", schedule=None):
        sensor = PgQueueDeadMessageSensor(task_id="dead", queue_name="orders")
        TriggerDagRunOperator.partial(task_id="start", trigger_dag_id="repair").expand(conf=sensor.output)


def test_without_a_triggerer_a_sensor_polls_and_names_queue_filter_and_time_when_that_is_over(
    conn_id: str, queue: Queue, run: Run
) -> None:
    waits: dict[str, Any] = {"deferrable": False, "poll_interval": 0.01, "timeout": 0.05}
    sensor = PgQueueMessageSensor(task_id="wait", queue_name=queue("orders"), min_messages=2, **waits)
    said = r"queue 'orders' \(min_messages=2\) until the timeout of 0:00:00\.05"
    with pytest.raises(AirflowSensorTimeout, match=said):
        run(sensor)
    PgQueueHook(conn_id).publish_batch("orders", [1, 2])
    assert json.loads(run(sensor))["ready"] == 2


def test_a_sensor_that_waited_too_long_times_out_as_every_sensor_does(run: Run, context: Any) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders")
    with pytest.raises(AirflowSensorTimeout) as timeout:
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert isinstance(timeout.value.__cause__, TaskDeferralTimeout)


def test_a_task_whose_trigger_failed_says_why(context: Any) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders", pgqueue_conn_id="nowhere")
    arguments = sensor.start_trigger_args.trigger_kwargs  # type: ignore[union-attr]
    with pytest.raises(AirflowNotFoundException) as failed:
        within(20, take(as_task(PgQueueMessageTrigger(**arguments))))
    # As the triggerer passes it on, and Airflow stores it.
    given = {"error": "Trigger failure", "traceback": traceback.format_exception(failed.value)}
    why = r"Trigger failure: .*AirflowNotFoundException: Airflow has no connection 'nowhere'\. Define it"
    with pytest.raises(AirflowException, match=why):
        sensor.resume_execution("__fail__", given, context)


def test_a_task_that_looks_before_it_waits_names_the_connection_that_is_missing(run: Run) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders", pgqueue_conn_id="nowhere")
    with pytest.raises(AirflowNotFoundException, match=r"Airflow has no connection 'nowhere'\. Define it"):
        run(sensor)


ENDS = [
    {"outlets": [Asset("orders_arrived")]},
    {"on_success_callback": lambda context: None},
    {"post_execute": lambda context, result: None},
]


@pytest.mark.parametrize("ending", ENDS, ids=lambda ending: next(iter(ending)))
def test_a_sensor_with_something_to_do_at_its_end_ends_in_a_worker_and_not_too_soon(
    conn_id: str, queue: Queue, run: Run, ending: dict[str, Any]
) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name=queue("orders"), **ending)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    arguments = deferred.value.trigger.serialize()[1]
    assert (arguments["end_task"], arguments["notify_after"]) == (False, SAFE_TO_RESUME)
    notification = {"queue_name": "orders", "ready": 1, "oldest_age": 0.5, "topics": []}
    assert run(sensor, "execute_complete", event=notification) == json.dumps(notification)
    assert sensor.retries == 1


@pytest.mark.parametrize("push", [True, False])
def test_a_sensor_that_pushes_no_result_pushes_none_in_the_triggerer_either(
    conn_id: str, queue: Queue, run: Run, push: bool
) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name=queue("orders"), do_xcom_push=push)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    PgQueueHook(conn_id).publish("orders", 1)
    # As the triggerer does.
    deferred.value.trigger.task_instance = SimpleNamespace(task_id="wait")

    async def end() -> Any:
        async with aclosing(deferred.value.trigger.run()) as events:
            return await anext(events)

    event = asyncio.run(asyncio.wait_for(end(), 20))
    assert (event.xcoms is not None) == push


@pytest.mark.parametrize(
    "task",
    [
        PgQueueMessageSensor(task_id="wait", queue_name="orders"),
        PgQueueDeadMessageSensor(task_id="wait", queue_name="orders"),
        PgQueueMessageSensor(task_id="wait", queue_name="orders", outlets=[Asset("orders_arrived")]),
        PgQueueConsumeOperator(task_id="wait", queue_name="orders", apply_function=print, wait_for_messages=True),
    ],
    ids=["message", "dead message", "with outlets", "consume"],
)
def test_in_dag_test_what_is_beyond_repair_is_raised_and_a_notification_resumes_the_task(
    dsn: str, airflow_connection: Callable[..., str], queue: Queue, run: Run, task: Any
) -> None:
    """There nobody tells the trigger that it is for a task, and nothing stops one that tries again forever."""
    conn_id = airflow_connection(dsn)
    queue("orders")
    with pytest.raises(TaskDeferred) as deferred:
        run(task)
    _, arguments = deferred.value.trigger.serialize()
    arguments["notify_after"] = 0.0

    def in_line() -> Any:
        async def first() -> Any:
            async with aclosing(type(deferred.value.trigger)(**arguments).run()) as events:
                return await asyncio.wait_for(anext(events), 20)

        return asyncio.run(first())

    airflow_connection(dsn, login="no_such_role")
    with pytest.raises(ConnectionFailed, match="no_such_role"):
        in_line()
    airflow_connection(dsn)
    hook = PgQueueHook(conn_id)
    hook.publish_batch("orders", [1, 2])
    with hook.lease("orders") as lease:
        lease.reject(lease[0], "it is dead")
    assert in_line().payload["queue_name"] == "orders"


def test_a_sensor_that_is_not_deferrable_looks_every_poll_interval(conn_id: str) -> None:
    sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders", deferrable=False, poll_interval=7)
    assert sensor.poke_interval == 7
    sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders", deferrable=False, poke_interval=3)
    assert sensor.poke_interval == 3


@pytest.mark.parametrize("ending", [{}, ENDS[0]], ids=lambda ending: next(iter(ending), "nothing"))
def test_a_sensor_begins_in_the_triggerer_with_the_trigger_that_it_would_defer_to(
    conn_id: str, queue: Queue, run: Run, ending: dict[str, Any]
) -> None:
    sensor = PgQueueMessageSensor(
        task_id="wait", queue_name=queue("orders"), min_messages=2, max_wait=60, timeout=90, **ending
    )
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    classpath, arguments = deferred.value.trigger.serialize()
    at_start = sensor.start_trigger_args
    assert sensor.start_from_trigger is True
    assert at_start is not None
    assert at_start.trigger_cls == classpath
    # No worker deferred, so there is none whose end Airflow could take for that of the task.
    assert at_start.trigger_kwargs == arguments | {"notify_after": 0.0}
    assert (at_start.next_method, at_start.timeout) == (deferred.value.method_name, deferred.value.timeout)


def test_where_triggerers_serve_queues_a_sensor_begins_in_a_worker_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler hands it over without a queue, for which there may be no triggerer."""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    begins = {
        told: PgQueueMessageSensor(task_id="wait", queue_name="orders", start_from_trigger=told).start_from_trigger
        for told in (None, True, False)
    }
    assert begins == {None: False, True: True, False: False}


@pytest.mark.parametrize(
    "kind",
    [PgQueueMessageSensor, PgQueueDeadMessageSensor, PgQueueConsumeOperator, PgQueueDispatchOperator],
    ids=lambda kind: kind.__name__,
)
def test_a_task_that_defers_waits_in_a_triggerer_of_its_queue(
    kind: type[QueueTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    task: Any = kind(task_id="wait", queue="paris", **TASKS[kind])
    trigger = task._trigger(notify_after=0.0)
    ti: Any = SimpleNamespace(task=task, dag_id="orders", run_id="manual__1", task_id="wait")
    deferral, _ = _defer_task(TaskDeferred(trigger=trigger, method_name="execute_complete"), ti, get_logger())
    # Before Airflow 3.2 triggerers served no queues.
    assert getattr(deferral, "queue", None) == ("paris" if AIRFLOW >= (3, 2) else None)


IN_A_WORKER = [
    {"queue_name": "{{ params.queue }}"},
    {"deferrable": False},
    {"start_from_trigger": False},
    {"on_execute_callback": lambda context: None},
    {"pre_execute": lambda context: None},
]


@pytest.mark.parametrize("reason", IN_A_WORKER, ids=lambda reason: next(iter(reason)))
def test_a_sensor_with_something_to_do_or_to_render_at_its_beginning_begins_in_a_worker(reason: dict[str, Any]) -> None:
    sensor = PgQueueMessageSensor(**{"task_id": "wait", "queue_name": "orders", **reason})
    assert sensor.start_from_trigger is False
    assert sensor.start_trigger_args is None


def test_airflow_stores_how_a_sensor_begins_but_lets_a_mapped_one_begin_in_a_worker() -> None:
    with DAG("sensors", schedule=None) as dag:
        PgQueueDeadMessageSensor(task_id="dead", queue_name="orders", results=["failed"], timeout=90)
        PgQueueMessageSensor.partial(task_id="mapped").expand(queue_name=["a", "b"])
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    dead, mapped = stored.get_task("dead"), stored.get_task("mapped")
    assert dead.start_from_trigger is True
    assert dead.start_trigger_args.trigger_cls.endswith(".PgQueueDeadMessageTrigger")
    assert dead.start_trigger_args.timeout == timedelta(seconds=90)
    assert mapped.start_from_trigger is False
