"""The sensor of outcomes: a task that ends with what became of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core import Consumer, Failed, InvalidArgument, Message, Rejected
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
from airflow_provider_pgqueue.triggers.notification import SAFE_TO_RESUME
from airflow_provider_pgqueue.triggers.outcome import PgQueueOutcomeTrigger
from tests.waiting import async_until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]
NONE = dict.fromkeys(("success", "failed", "rejected", "lock_expired", "expired", "cancelled"), 0)


def wait(**arguments: Any) -> PgQueueOutcomeSensor:
    return PgQueueOutcomeSensor(**{"task_id": "wait", **arguments})


def handle_all(conn: Connection, handle: Callable[[Message], Any] = lambda message: None) -> None:
    Consumer(queue_name="orders", handle=handle).drain(conn)


def trigger_of(run: Run, sensor: PgQueueOutcomeSensor) -> PgQueueOutcomeTrigger:
    """Return the trigger that a sensor defers to, as the triggerer makes it, but for its pauses."""
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    assert not deferred.value.kwargs, "dag.test() loses them"
    _, arguments = deferred.value.trigger.serialize()
    assert arguments["notify_after"] == SAFE_TO_RESUME
    return PgQueueOutcomeTrigger(**json.loads(json.dumps(arguments)) | {"notify_after": 0.0, "poll_interval": 0.05})


def as_task(trigger: PgQueueOutcomeTrigger) -> PgQueueOutcomeTrigger:
    trigger.task_instance = SimpleNamespace(task_id="wait")
    return trigger


async def fired(trigger: PgQueueOutcomeTrigger) -> TriggerEvent:
    async with aclosing(trigger.run()) as events:
        return await asyncio.wait_for(anext(events), 30)


def looks(conn: Connection) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'pgqueue:listener' AND state = 'idle' AND query LIKE '%outcome_counts%'"
    )
    ((number,),) = conn.execute(query).fetchall()
    return int(number)


# What it waits for ----------------------------------------------------------------------------------------------------


def test_what_has_ended_is_counted_by_result_and_a_dead_message_is_no_failure(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    ids = PgQueueHook(conn_id).publish_batch(queue("orders"), [1, "bad", 2], references=["monday"] * 3)
    handle_all(conn, lambda message: Rejected("kiwi") if message.body == "bad" else None)
    found = {**NONE, "success": 2, "rejected": 1}
    assert json.loads(run(wait(ids=ids))) == found
    assert json.loads(run(wait(reference="monday", expected=3))) == found
    assert json.loads(run(wait(reference="monday", expected="3", queue_name="orders", fail_on=["failed"]))) == found


@pytest.mark.parametrize("fail_on", ["dead", ["rejected"], ("failed", "rejected")])
def test_results_fail_the_task_for_good_on_demand(
    conn_id: str, queue: Queue, conn: Connection, run: Run, fail_on: Any
) -> None:
    ids = PgQueueHook(conn_id).publish_batch(queue("orders"), [1, 2])
    handle_all(conn, lambda message: Rejected("kiwi") if message.body == 1 else None)
    with pytest.raises(AirflowFailException, match="1 success, 1 rejected") as failed:
        run(wait(ids=ids, fail_on=fail_on))
    assert str(ids[0]) in str(failed.value)
    assert "kiwi" not in str(failed.value)
    with pytest.raises(AirflowSkipException):
        run(wait(ids=ids, fail_on=fail_on, soft_fail=True))


def test_an_id_of_no_message_fails_the_task(conn_id: str, queue: Queue, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="the end of message 4711; found 1 unknown"):
        run(wait(ids="4711"))


def test_fewer_messages_than_expected_are_waited_for(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1, reference="monday")
    handle_all(conn)
    trigger = trigger_of(run, wait(reference="monday", expected=2))

    async def publish_the_second() -> TriggerEvent:
        waiting = asyncio.create_task(fired(as_task(trigger)))
        await async_until(lambda: looks(conn) == 1)
        await asyncio.to_thread(hook.publish, "orders", 2, reference="monday")
        await asyncio.to_thread(handle_all, conn)
        return await waiting

    event = asyncio.run(publish_the_second())
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {"return_value": {**NONE, "success": 2}}


def test_two_thousand_messages_are_waited_for_by_one_sensor(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    ids = PgQueueHook(conn_id).publish_batch(queue("orders"), range(2000), references=["monday"] * 2000)
    handle_all(conn)
    for given in ({"ids": ids}, {"reference": "monday", "expected": 2000}):
        assert json.loads(run(wait(**given)))["success"] == 2000


def test_a_requeue_is_followed_on_demand(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    handle_all(conn, lambda message: Failed("no"))
    with pytest.raises(TaskDeferred):
        run(wait(ids=id_, follow_requeues=True))
    conn.execute("SELECT messages.requeue_dead('orders')")
    with pytest.raises(TaskDeferred):
        run(wait(ids=id_, follow_requeues=True))
    handle_all(conn)
    assert json.loads(run(wait(ids=id_, follow_requeues=True)))["success"] == 1
    assert json.loads(run(wait(ids=id_)))["failed"] == 1


# Its ids --------------------------------------------------------------------------------------------------------------


class Lazy(Sequence[Any]):
    """What Airflow gives for the results of a mapped task: each is fetched when it is asked for."""

    def __init__(self, *results: Any) -> None:
        self.results = results
        self.fetched = 0

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: Any) -> Any:
        self.fetched += 1
        return self.results[place]

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))


PUBLISHED = {"queue_name": "orders", "published": 2, "first_id": 1, "last_id": 2, "ids": [1, 2]}
AGAIN = {"queue_name": "orders", "published": 0, "first_id": None, "last_id": None, "duplicate_of": 3, "ids": []}


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (7, [7]),
        ("7", [7]),
        ("1, 2,3", [1, 2, 3]),
        ("[1, 2]", [1, 2]),
        ("[]", []),
        ([3, "2", 3], [2, 3]),
        ((1, 2), [1, 2]),
        (range(1, 4), [1, 2, 3]),
        (PUBLISHED, [1, 2]),
        ([PUBLISHED, AGAIN], [1, 2, 3]),
    ],
)
def test_ids_are_given_in_any_form(given: Any, ids: list[int]) -> None:
    sensor = wait(ids=given)
    sensor.pre_execute({})
    assert sensor.ids == ids


def test_the_results_of_a_mapped_task_are_fetched_once(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    with DAG("d", schedule=None):
        publish = PgQueuePublishOperator.partial(task_id="publish", queue_name="orders").expand(message=[1, 2])
        sensor = wait(ids=publish.output)
    assert sensor.upstream_task_ids == {"publish"}
    results = [run(PgQueuePublishOperator(task_id=name, queue_name="orders", message=1)) for name in ("a", "b")]
    handle_all(conn)
    sensor.ids = lazy = Lazy(*results)
    assert json.loads(run(sensor))["success"] == 2
    assert lazy.fetched == 2


@pytest.mark.parametrize(
    "bad",
    [
        *(0, -1, 2**63, "seven", "1.5", True, 1.5, [None], {"id": 1}, b"7"),
        {**PUBLISHED, "published": 101, "ids": None},
        {**AGAIN, "several": True},
    ],
)
def test_what_names_no_ids_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^ids is .*reference"):
        wait(ids=bad)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "ids and reference are both given, or neither"),
        ({"ids": 1, "reference": "a", "expected": 1}, "ids and reference are both given, or neither"),
        ({"reference": "a"}, "expected is None"),
        ({"ids": 1, "expected": 1}, "expected is given, and does nothing"),
        ({"ids": 1, "queue_name": "orders"}, "queue_name is given, and does nothing"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        wait(**given)


def test_ids_that_a_task_did_not_return_are_not_no_ids() -> None:
    with DAG("d", schedule=None):
        sensor = wait(ids=PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1).output)
    sensor.ids = None
    with pytest.raises(InvalidArgument, match="ids is None"):
        sensor.pre_execute({})


# How it ends ----------------------------------------------------------------------------------------------------------


def test_the_trigger_ends_the_task(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), "kiwi")
    trigger = trigger_of(run, wait(ids=id_))

    async def fail_once() -> TriggerEvent:
        waiting = asyncio.create_task(fired(as_task(trigger)))
        await async_until(lambda: looks(conn) == 1)
        # A first attempt that fails is no end.
        await asyncio.to_thread(handle_all, conn, lambda message: 1 / 0)
        await asyncio.to_thread(conn.execute, "UPDATE messages.message SET visible_at = clock_timestamp()")
        await asyncio.to_thread(handle_all, conn)
        return await waiting

    event = asyncio.run(fail_once())
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {"return_value": {**NONE, "success": 1}}


@pytest.mark.parametrize("fail_on", [(), "dead"])
def test_in_dag_test_the_task_ends_with_what_the_trigger_found(
    conn_id: str, queue: Queue, conn: Connection, run: Run, fail_on: Any
) -> None:
    """There the trigger knows no task, and the task gets nothing but the event."""
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    sensor = wait(ids=id_, fail_on=fail_on)
    trigger = trigger_of(run, sensor)
    handle_all(conn, lambda message: Rejected("no"))
    event = asyncio.run(fired(trigger))
    assert type(event) is TriggerEvent
    if fail_on:
        with pytest.raises(AirflowFailException, match="1 rejected"):
            run(sensor, "execute_complete", event=event.payload)
    else:
        assert json.loads(run(sensor, "execute_complete", event=event.payload)) == {**NONE, "rejected": 1}


def test_a_result_that_fails_the_task_resumes_it(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    trigger = trigger_of(run, wait(ids=id_, fail_on="dead"))
    handle_all(conn, lambda message: Rejected("no"))
    event = asyncio.run(fired(as_task(trigger)))
    assert type(event) is TriggerEvent
    assert event.payload["rejected"] == 1


def test_hundreds_of_waits_share_one_connection_that_others_do_not_make_look(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    ids = PgQueueHook(conn_id).publish_batch(queue("orders"), range(200))

    async def all_wait() -> list[TriggerEvent]:
        triggers = [PgQueueOutcomeTrigger(ids=[id_], poll_interval=0.5) for id_ in ids]
        waiting = [asyncio.create_task(fired(trigger)) for trigger in triggers]
        await async_until(lambda: looks(conn) == 1)
        await asyncio.to_thread(handle_all, conn)
        return await asyncio.gather(*waiting)

    assert [event.payload["success"] for event in asyncio.run(all_wait())] == [1] * 200


@pytest.mark.parametrize("soft_fail", [False, True])
def test_without_a_triggerer_a_sensor_that_waited_too_long_times_out_as_every_sensor_does(
    conn_id: str, queue: Queue, run: Run, soft_fail: bool
) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    with pytest.raises(AirflowSkipException if soft_fail else AirflowSensorTimeout):
        run(wait(ids=id_, deferrable=False, timeout=0.1, poll_interval=0.05, soft_fail=soft_fail))
