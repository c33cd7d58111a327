"""Publish and wait: tasks that end with what became of their messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk.execution_time.timeout import TimeoutPosix
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core import Consumer, Failed, InvalidArgument, Message, Rejected, Success, verbs
from airflow_provider_pgqueue.core import run as run_verb
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator, PgQueueRequestOperator
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
from airflow_provider_pgqueue.triggers.outcome import PgQueueOutcomeTrigger
from tests.waiting import async_until, until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]
SOON = 0.001
"""A time to wait for messages after which a task defers as soon as a look found nothing."""


def within(seconds: float, work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


def publish_and_wait(**arguments: Any) -> PgQueueRequestOperator:
    arguments = {"task_id": "ask", "queue_name": "orders"} | arguments
    return PgQueueRequestOperator(**arguments)


def handle_all(conn: Connection, handle: Callable[[Message], Any]) -> None:
    Consumer(queue_name="orders", handle=handle).drain(conn)


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def as_task(trigger: PgQueueOutcomeTrigger) -> PgQueueOutcomeTrigger:
    trigger.task_instance = SimpleNamespace(task_id="ask")
    return trigger


async def fired(trigger: PgQueueOutcomeTrigger) -> TriggerEvent:
    async with aclosing(trigger.run()) as events:
        return await anext(events)


def listeners(conn: Connection, asked: str = "%") -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'pgqueue:listener' AND state = 'idle' AND query LIKE %s"
    )
    ((number,),) = conn.execute(query, [asked]).fetchall()
    return int(number)


def is_listening(conn: Connection) -> bool:
    return listeners(conn, "%message_outcomes%") == 1


# Publish and wait -----------------------------------------------------------------------------------------------------


def test_a_quick_reply_ends_the_task_in_its_worker_with_the_outcome_and_no_body(
    conn_id: str, queue: Queue, conn: Connection, run: Run, beside: ThreadPoolExecutor
) -> None:
    queue("orders")

    def reply() -> None:
        until(lambda: conn.execute("SELECT FROM messages.message").rowcount == 1)
        handle_all(conn, lambda message: Success(output={"total": message.body["n"] * 2}))

    done = beside.submit(reply)
    result = run(publish_and_wait(message={"n": 21, "secret": "kiwi"}, poll_interval=600.0))
    done.result()
    (outcome,) = result["outcomes"]
    assert outcome == {"message_id": result["first_id"], "queue_name": "orders", "result": "success", "attempts": 1}
    assert "kiwi" not in json.dumps(result)


def test_the_output_comes_back_only_on_demand(
    conn_id: str, queue: Queue, conn: Connection, run: Run, beside: ThreadPoolExecutor
) -> None:
    queue("orders")

    def reply() -> None:
        until(lambda: conn.execute("SELECT FROM messages.message").rowcount == 2)
        handle_all(conn, lambda message: Success(output={"total": message.body * 2}))

    done = beside.submit(reply)
    result = run(publish_and_wait(messages=[20, 21], with_output=True))
    done.result()
    assert [one["output"] for one in result["outcomes"]] == [{"total": 40}, {"total": 42}]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [(Rejected("kiwi"), "ended as rejected"), (Failed("kiwi", {"error": "KeyError", "message": "kiwi"}), "KeyError")],
    ids=["rejected", "failed"],
)
def test_a_dead_message_fails_the_task_for_good_with_its_id_and_kind_and_nothing_of_its_body(
    conn_id: str, queue: Queue, conn: Connection, run: Run, outcome: Any, said: str
) -> None:
    queue("orders")
    with pytest.raises(TaskDeferred) as deferred:
        run(publish_and_wait(message="kiwi", wait_timeout=SOON))
    handle_all(conn, lambda message: outcome)
    with pytest.raises(AirflowFailException, match=said) as failed:
        run(publish_and_wait(message="kiwi"), "execute_complete", **(deferred.value.kwargs or {}))
    (id_,) = (deferred.value.kwargs or {})["ids"]
    assert f"message {id_} of queue orders" in str(failed.value)
    assert "kiwi" not in str(failed.value)


def test_what_no_handler_finished_fails_the_task(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    queue("orders", max_attempts=1)
    hook.publish("orders", 1, expires_in=timedelta(milliseconds=1))
    lost = hook.publish("orders", 2)
    expire = "UPDATE messages.message SET lock_expires_at = now() - interval '1 s', locked_by = 'x' WHERE id = %s"
    conn.execute(expire, [lost])
    conn.execute("SELECT messages.upkeep()")
    for id_, result in conn.execute("SELECT id, result FROM messages.message_archive").fetchall():
        sensor = PgQueueOutcomeSensor(task_id="wait", message_id=id_)
        with pytest.raises(AirflowFailException, match=f"message {id_} of queue orders ended as {result}"):
            run(sensor)
    with pytest.raises(AirflowFailException, match="message 4711 does not exist, or no longer"):
        run(PgQueueOutcomeSensor(task_id="wait", message_id="4711"))
    with pytest.raises(AirflowSkipException):
        run(PgQueueOutcomeSensor(task_id="wait", message_id=4711, soft_fail=True))


def test_another_try_of_a_task_that_waited_publishes_nothing_and_waits_for_the_same_messages(
    conn_id: str, queue: Queue, conn: Connection, run: Run, context: dict[str, Any]
) -> None:
    queue("orders")
    kept = []
    for try_number in (1, 2):
        context["ti"].try_number = try_number
        with pytest.raises(TaskDeferred) as deferred:
            run(publish_and_wait(messages=["a", "b", "c"], wait_timeout=SOON))
        kept.append(deferred.value.kwargs or {})
    assert kept[0]["ids"] == kept[1]["ids"]
    assert [one["summary"]["published"] for one in kept] == [3, 0]
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (3,)
    handle_all(conn, lambda message: None)
    context["ti"].try_number = 3
    assert len(run(publish_and_wait(messages=["a", "b", "c"]))["outcomes"]) == 3


def test_a_cleared_task_waits_for_the_same_message_unless_its_body_is_another(
    conn_id: str, queue: Queue, conn: Connection, run: Run, context: dict[str, Any]
) -> None:
    queue("orders")
    kept = []
    for body in ("a", "a", "b"):
        with pytest.raises(TaskDeferred) as deferred:
            run(publish_and_wait(messages=[body], wait_timeout=SOON))
        kept.append((deferred.value.kwargs or {})["ids"])
        context["ti"].max_tries += 1
    assert kept[0] == kept[1] != kept[2]


def test_more_than_a_hundred_messages_are_not_published_to_be_waited_for(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    queue("orders")
    with pytest.raises(InvalidArgument, match="more than 100 messages"):
        run(publish_and_wait(messages=list(range(101))))
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (0,)


def test_without_a_triggerer_the_task_waits_in_its_worker_until_its_timeout(
    conn_id: str, queue: Queue, run: Run
) -> None:
    queue("orders")
    with pytest.raises(AirflowException, match=r"not all of these messages are finished: \d+"):
        run(publish_and_wait(message=1, deferrable=False, wait_timeout=timedelta(milliseconds=300)))


@pytest.mark.parametrize("lenient", [None, "soft_fail", "never_fail"])
def test_without_a_triggerer_a_sensor_that_waited_too_long_times_out_as_every_sensor_does(
    conn_id: str, queue: Queue, run: Run, lenient: str | None
) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    given: dict[str, Any] = {lenient: True} if lenient else {}
    error = AirflowSkipException if lenient else AirflowSensorTimeout
    sensor = PgQueueOutcomeSensor(task_id="wait", message_id=id_, deferrable=False, timeout=0.1, **given)
    with pytest.raises(error, match=f"not all of these messages are finished: {id_}"):
        run(sensor)


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowTaskTimeout), (True, AirflowSkipException)])
def test_a_sensor_whose_execution_timeout_ends_in_a_worker_is_skipped_if_it_may_fail(
    conn_id: str, queue: Queue, run: Run, soft_fail: bool, error: type[BaseException]
) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    sensor = PgQueueOutcomeSensor(task_id="wait", message_id=id_, deferrable=False, soft_fail=soft_fail)
    with pytest.raises(error), TimeoutPosix(seconds=0.5):
        run(sensor)


# The trigger and the sensor -------------------------------------------------------------------------------------------


def test_a_waiting_task_is_rung_for_the_success_of_its_message(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    queue("orders")
    with pytest.raises(TaskDeferred) as deferred:
        run(publish_and_wait(message="kiwi", wait_timeout=SOON))
    trigger = PgQueueOutcomeTrigger(ids=(deferred.value.kwargs or {})["ids"], poll_interval=600.0)

    async def wait() -> TriggerEvent:
        waiting = asyncio.create_task(fired(trigger))
        await async_until(lambda: is_listening(conn))
        # A first attempt that fails is no end.
        handle_all(conn, lambda message: 1 / 0)  # type: ignore[arg-type, return-value]
        conn.execute("UPDATE messages.message SET visible_at = clock_timestamp()")
        await asyncio.to_thread(handle_all, conn, lambda message: None)
        return await waiting

    event = within(30, wait())
    assert [(one["result"], one["attempts"]) for one in event.payload["outcomes"]] == [("success", 2)]
    assert "kiwi" not in event.model_dump_json()


def test_a_trigger_that_starts_again_finds_what_ended_meanwhile(conn_id: str, queue: Queue, conn: Connection) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    handle_all(conn, lambda message: None)
    event = within(20, fired(as_task(PgQueueOutcomeTrigger(ids=[id_], end_task=True, poll_interval=600.0))))
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {
        "return_value": {"message_id": id_, "queue_name": "orders", "result": "success", "attempts": 1}
    }


def test_a_dead_message_resumes_the_task_which_says_why(conn_id: str, queue: Queue, conn: Connection) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    handle_all(conn, lambda message: Rejected("no"))
    event = within(20, fired(as_task(PgQueueOutcomeTrigger(ids=[id_], end_task=True))))
    assert type(event) is TriggerEvent
    assert event.payload["outcomes"][0]["result"] == "rejected"


def test_hundreds_of_waits_for_different_messages_share_one_connection(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    ids = PgQueueHook(conn_id).publish_batch(queue("orders"), range(300), headers={"awaited": True})

    async def wait() -> list[TriggerEvent]:
        triggers = [PgQueueOutcomeTrigger(ids=[id_], poll_interval=600.0) for id_ in ids]
        waiting = [asyncio.create_task(fired(trigger)) for trigger in triggers]
        await async_until(lambda: is_listening(conn))
        assert listeners(conn) == 1
        await asyncio.to_thread(handle_all, conn, lambda message: None)
        return await asyncio.gather(*waiting)

    events = within(60, wait())
    assert [event.payload["outcomes"][0]["message_id"] for event in events] == ids


def test_a_requeue_is_followed_on_demand(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    handle_all(conn, lambda message: Failed("no"))

    def follow() -> Any:
        return run(PgQueueOutcomeSensor(task_id="wait", message_id=id_, follow_requeues=True, timeout=SOON))

    with pytest.raises(TaskDeferred):
        follow()
    ((_, new_id),) = conn.execute("SELECT * FROM messages.requeue_dead('orders')").fetchall()
    with pytest.raises(TaskDeferred):
        follow()
    handle_all(conn, lambda message: None)
    assert json.loads(follow())["repeated_as"] == new_id
    with pytest.raises(AirflowFailException, match="failed"):
        run(PgQueueOutcomeSensor(task_id="wait", message_id=id_))


def test_a_sensor_with_an_output_ends_in_a_worker(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    id_ = PgQueueHook(conn_id).publish(queue("orders"), 1)
    sensor = PgQueueOutcomeSensor(task_id="wait", message_id=str(id_), with_output=True, timeout=SOON)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor)
    trigger = deferred.value.trigger
    assert isinstance(trigger, PgQueueOutcomeTrigger)
    assert not trigger.end_task
    handle_all(conn, lambda message: Success(output=[1, "two"]))
    ended = json.loads(run(sensor, "execute_complete", **(deferred.value.kwargs or {})))
    assert ended["output"] == [1, "two"]


def test_a_sensor_takes_the_result_of_the_task_that_published(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    queue("orders")
    results = [run(PgQueuePublishOperator(task_id="tell", queue_name="orders", message=1)) for _ in range(2)]
    handle_all(conn, lambda message: None)
    for result in results:
        assert json.loads(run(PgQueueOutcomeSensor(task_id="wait", message_id=result)))["message_id"] == 1


def test_a_success_rings_only_for_messages_that_somebody_awaits(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run_verb(conn, verbs.publish_batch("orders", [1, 2]))
    conn.execute("LISTEN message_finished")
    handle_all(conn, lambda message: None)
    assert list(conn.notifies(timeout=0)) == []
    run_verb(conn, verbs.publish_batch("orders", [1, 2], headers={"awaited": True}))
    handle_all(conn, lambda message: None)
    rung = list(conn.notifies(timeout=0))
    assert {one.channel for one in rung} == {"message_finished"}
    assert {one.payload for one in rung} <= {"3", "4"}
