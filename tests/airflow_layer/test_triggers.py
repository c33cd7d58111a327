"""The triggers: as a deferred task runs them, and as asset watchers do."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import BaseEventTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core import InvalidArgument, migrate, run, verbs
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.triggers import hub
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger
from airflow_provider_pgqueue.triggers.dispatch import PgQueueDispatchTrigger
from airflow_provider_pgqueue.triggers.message import PgQueueConsumerTrigger, PgQueueMessageTrigger
from tests.airflow_layer.airflow_versions import deserialize, serialize
from tests.waiting import async_until, async_until_still

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
TRIGGERS = [
    PgQueueMessageTrigger(queue_name="orders", min_messages=5, max_wait=1.5, notify_every=3, end_task=True),
    PgQueueMessageTrigger(queue_name="orders", pgqueue_conn_id="other", poll_interval=5),
    PgQueueDeadMessageTrigger(queue_name="orders", results=["rejected"]),
    PgQueueDeadMessageTrigger(queue_name="orders"),
    PgQueueConsumerTrigger(queue_name="orders"),
    PgQueueDispatchTrigger(queue_name="orders", dag_id="pack", max_open=3),
]

LISTENING = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue:listener'"
    " AND state = 'idle' AND query LIKE '%closed_queues(%'"
)


def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def take(trigger: BaseEventTrigger, number: int = 1) -> list[TriggerEvent]:
    events = []
    async with aclosing(trigger.run()) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == number:
                break
    return events


def as_task(trigger: BaseEventTrigger) -> BaseEventTrigger:
    """Do what the triggerer does for a deferred task."""
    trigger.task_instance = SimpleNamespace(task_id="wait")
    return trigger


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_a_trigger_comes_back_from_the_database_as_it_was(trigger: BaseEventTrigger) -> None:
    classpath, arguments = trigger.serialize()
    assert arguments.keys() == trigger.rules.keys()
    module, name = classpath.rsplit(".", 1)
    stored = json.loads(json.dumps(serialize(arguments)))
    again = getattr(__import__(module, fromlist=[name]), name)(**deserialize(stored))
    assert again.serialize() == trigger.serialize()
    assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(*trigger.serialize())


def test_a_waiting_task_is_ended_with_the_notification_as_its_result(conn_id: str, queue: Queue) -> None:
    PgQueueHook(conn_id).publish_batch(queue("orders"), ["{{ secret }}", "secret"])
    (event,) = within(20, take(as_task(PgQueueMessageTrigger(queue_name="orders", end_task=True)), 2))
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is not None
    assert event.xcoms["return_value"]["ready"] == 2
    assert "secret" not in event.model_dump_json()


def test_ten_messages_resume_ten_of_twenty_consumers_that_wait(conn_id: str, queue: Queue, conn: Connection) -> None:
    queue("orders")

    async def resumed() -> int:
        waiting = [asyncio.create_task(take(as_task(PgQueueConsumerTrigger(queue_name="orders")))) for _ in range(20)]
        await async_until(lambda: conn.execute(LISTENING).fetchall())
        for number in range(10):
            PgQueueHook(conn_id).publish("orders", number, conn=conn)
        await async_until(lambda: sum(one.done() for one in waiting) >= 10)
        number = await async_until_still(lambda: sum(one.done() for one in waiting), 3.0)
        for one in waiting:
            one.cancel()
        return number

    assert within(60, resumed()) == 10


def test_a_waiting_task_resumes_with_the_notification_once(conn_id: str, queue: Queue) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)
    (event,) = within(20, take(as_task(PgQueueMessageTrigger(queue_name="orders")), 2))
    assert type(event) is TriggerEvent
    assert event.payload.keys() == {"queue_name", "ready", "oldest_age", "topics"}
    assert json.loads(json.dumps(event.payload)) == event.payload


def test_fewer_messages_than_asked_for_are_waited_for_until_max_wait(conn_id: str, queue: Queue) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    trigger = as_task(PgQueueMessageTrigger(queue_name="orders", min_messages=2, max_wait=1.0, poll_interval=300))
    (event,) = within(20, take(trigger))
    assert event.payload["ready"] == 1
    assert 1.0 <= event.payload["oldest_age"] < 10


def test_a_watcher_survives_a_failure_that_somebody_repairs(
    empty_dsn: str, airflow_connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.01)  # the pauses have a hundredth of their length
    hook = PgQueueHook(airflow_connection(empty_dsn))

    async def mend() -> Any:
        waiting = asyncio.create_task(take(PgQueueMessageTrigger(queue_name="orders")))
        await async_until(lambda: "cannot watch queue orders" in caplog.text)
        with psycopg.connect(empty_dsn, autocommit=True) as conn:
            migrate(conn)
            hook.run(verbs.create_queue("orders"), conn=conn)
            hook.publish("orders", 1, conn=conn)
        return await waiting

    assert within(20, mend())[0].payload["ready"] == 1


def test_a_watcher_that_started_before_the_set_up_says_so_once_and_tries_again_at_the_same_pace(
    empty_dsn: str, airflow_connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    airflow_connection(empty_dsn)
    pauses: list[float] = []

    def shorten(low: float, high: float) -> float:
        pauses.append(high)
        return 0.02

    async def try_often() -> None:
        waiting = asyncio.create_task(take(PgQueueMessageTrigger(queue_name="orders")))
        await async_until(lambda: len(pauses) >= 8)
        waiting.cancel()

    monkeypatch.setattr(random, "uniform", shorten)
    # Eight growing pauses would take more than 18 s.
    within(10, try_often())
    assert caplog.text.count("cannot watch queue orders") == 1


def test_tasks_do_not_share_a_stream_and_equal_watchers_do() -> None:
    one, same, other = (PgQueueMessageTrigger(queue_name=name) for name in ("orders", "orders", "mail"))
    assert one.shared_stream_key() == same.shared_stream_key() != other.shared_stream_key()
    assert isinstance(hash(PgQueueDeadMessageTrigger(queue_name="orders", results=["failed"]).shared_stream_key()), int)
    assert as_task(same).shared_stream_key() is None


def test_a_stream_that_is_closed_no_longer_waits(conn_id: str, queue: Queue) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)

    async def close() -> int:
        stream = PgQueueMessageTrigger.open_shared_stream({"queue_name": "orders"})
        await anext(stream)
        (one,) = hub._HUBS[asyncio.get_running_loop()].values()
        await stream.aclose()
        return len(one._waiters)

    assert within(20, close()) == 0


def test_a_watcher_told_to_end_its_task_has_none_and_notifies_as_seldom_as_others(conn_id: str, queue: Queue) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), 1)
    trigger = MessageQueueTrigger(
        scheme="pgqueue", queue_name="orders", end_task=True, notify_every=0.05, poll_interval=300
    ).trigger
    assert trigger.shared_stream_key() is not None
    assert [type(event) for event in within(20, take(trigger, 2))] == [TriggerEvent] * 2


@pytest.mark.airflow_since("3.3")
def test_watchers_and_tasks_of_a_triggerer_use_one_session(conn_id: str, queue: Queue, conn: Connection) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders"), [1, 2])
    hook.publish(queue("mail"), 1)
    watchers = [PgQueueMessageTrigger(queue_name=name) for name in ("orders", "orders", "mail")]

    from airflow.triggers.shared_stream import SharedStreamManager

    async def all_at_once() -> tuple[list[Any], Any]:
        manager = SharedStreamManager()
        streams = [_stream(manager, number, trigger) for number, trigger in enumerate(watchers)]
        events = await asyncio.gather(*(anext(stream) for stream in streams))
        events += await take(as_task(PgQueueMessageTrigger(queue_name="orders", end_task=True)))
        sessions = conn.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgqueue:listener'"
        ).fetchone()
        for number, trigger in enumerate(watchers):
            await manager.unsubscribe(number, trigger.shared_stream_key())
        return events, sessions

    events, sessions = within(20, all_at_once())
    assert [event.payload["ready"] for event in events[:3]] == [2, 2, 1]
    assert sessions == (1,)


def _stream(manager: Any, number: int, trigger: BaseEventTrigger) -> AsyncIterator[TriggerEvent]:
    stream = manager.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
    return trigger.filter_shared_stream(stream)


def test_a_waiting_dispatcher_outlives_a_database_that_is_away(
    dsn: str, conn: Connection, queue: Queue, airflow_connection: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(TUNING, "poll_when_full", 0.1)
    run(conn, verbs.publish(queue("orders"), 1))
    airflow_connection(dsn, port=1)

    async def come_back() -> list[TriggerEvent]:
        trigger = PgQueueDispatchTrigger(queue_name="orders", dag_id="pack", max_open=1)
        waiting = asyncio.create_task(take(as_task(trigger)))
        await async_until(lambda: "cannot look at the dispatches" in caplog.text)
        airflow_connection(dsn)
        return await waiting

    (event,) = within(60, come_back())
    assert event.payload["ready"] == 1


@pytest.mark.parametrize("kind", [PgQueueMessageTrigger, PgQueueDeadMessageTrigger])
def test_an_argument_that_is_missing_or_misspelt_is_named_with_the_trigger_that_was_written(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(
        InvalidArgument, match=rf"^{name} has no argument 'topik'\. It takes queue_name, pgqueue_conn_id"
    ):
        kind(queue_name="orders", topik="x")
    with pytest.raises(InvalidArgument, match=f"^{name} has no queue_name") as missing:
        kind()
    assert isinstance(missing.value, TypeError), "Airflow catches no other error of a trigger's __init__"
