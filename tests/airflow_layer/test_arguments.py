"""A bad argument is an error of the DAG that has it, and of no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG

from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.core.argument import check, json_object
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import (
    PgQueuePublishOperator,
)
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.triggers import hub
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.watch import DeadMessageWatch, MessageWatch, Watch
from tests.airflow_layer.airflow_versions import DagBag, TaskDeferred
from tests.waiting import async_until

Queue = Callable[..., str]
Run = Callable[..., Any]
NAMES = [123, None, "a\x00b", "\ud800", "", "Orders", ["orders"], b"orders", {"a": 1}]


@pytest.mark.parametrize("name", ["headers", "message", "messages", "parameters", "arguments"])
@pytest.mark.parametrize("value", ["SECRET", {"SECRET": object(), "b": "SECRET\0"}, b"SECRET"], ids=type)
def test_an_argument_that_may_hold_secrets_is_not_shown(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} is a {type(value).__name__}") as error:
        check({name: value}, {name: lambda value: "Give something else."})
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("text", ["\\u0000", "a\\\\u0000", "C:\\u0000"])
def test_a_text_that_only_looks_like_nul_in_json_is_taken(text: str) -> None:
    assert json_object({text: [text]}) is None


def test_what_a_template_makes_is_checked_when_the_task_begins(conn_id: str, run: Run, context: Any) -> None:
    with DAG("templates", schedule=None):
        tasks = [
            PgQueueMessageSensor(task_id="wait", queue_name="{{ name }}"),
            PgQueueConsumeOperator(task_id="consume", queue_name="{{ name }}", apply_function=print),
            PgQueuePublishOperator(task_id="publish", queue_name="{{ name }}", message=1),
        ]
        setup = PgQueueSetupOperator(task_id="setup", queues=[{"queue_name": "{{ name }}"}])
    setup.render_template_fields(context | {"name": "No Queue"})
    with pytest.raises(InvalidArgument, match=r"queues is .*No Queue"):
        run(setup)
    for task in tasks:
        task.render_template_fields(context | {"name": "No Queue"})
        with pytest.raises(InvalidArgument, match="queue_name is 'No Queue'"):
            run(task)


@pytest.mark.parametrize("name", ["queue_name", "message", "reference", "topic", "group_key", "dedup_key"])
def test_a_template_that_finds_nothing_makes_no_text_of_it(name: str, conn_id: str, run: Run, context: Any) -> None:
    with DAG("templates", schedule=None):
        task = PgQueuePublishOperator(**{"task_id": "t", "queue_name": "orders", "message": 1, name: "{{ nothing }}"})
    task.render_template_fields(context | {"nothing": None})
    with pytest.raises(InvalidArgument, match=rf"^{name} is .*give a default"):
        run(task)


def test_a_comment_of_a_template_that_leaves_nothing_is_found_when_the_task_begins(run: Run, context: Any) -> None:
    with DAG("templates", schedule=None):
        task = PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1, reference="{# nothing #}")
    task.render_template_fields(context)
    with pytest.raises(InvalidArgument, match="reference is ''"):
        run(task)


def test_a_bad_argument_is_an_import_error_of_its_dag_alone(tmp_path: Path) -> None:
    text = (
        "from airflow.sdk import DAG\n"
        "from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor\n"
        "with DAG({id!r}, schedule=None):\n    PgQueueMessageSensor(task_id='wait', queue_name={name})\n"
    )
    (tmp_path / "good.py").write_text(text.format(id="good", name="'orders'"))
    (tmp_path / "bad.py").write_text(text.format(id="bad", name="123"))
    bag = DagBag(tmp_path)
    assert set(bag.dags) == {"good"}
    ((path, error),) = bag.import_errors.items()
    assert path.endswith("bad.py")
    assert "queue_name is 123" in error


def test_a_triggerer_that_gets_such_a_trigger_fails_it_and_goes_on() -> None:
    from airflow.executors.workloads import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    async def create() -> Any:
        runner = TriggerRunner()
        classpath, arguments = PgQueueMessageTrigger(queue_name="orders").serialize()
        for id_, change in enumerate([{"queue_name": 123}, {"poll_interval": "10"}, {}]):
            kwargs = Trigger.encrypt_kwargs(arguments | change)
            runner.to_create.append(RunTrigger(id=id_, ti=None, classpath=classpath, encrypted_kwargs=kwargs))
        await runner.create_triggers()
        for details in runner.triggers.values():
            details["task"].cancel()
        await asyncio.wait([details["task"] for details in runner.triggers.values()])
        return [id_ for id_, _ in runner.failed_triggers], list(runner.triggers)

    assert within(20, create()) == ([0, 1], [2])


# The hub does not rely on those checks -------------------------------------------------------------------------------


class BrokenWatch(MessageWatch):
    """One that fails when it hears."""

    def receive(self, rows: Any, now: float) -> Any:
        raise RuntimeError("it is broken")


HURTING: list[Watch] = [
    *(MessageWatch(queue_name=name) for name in NAMES),  # type: ignore[arg-type]
    *(DeadMessageWatch(queue_name=name) for name in NAMES),  # type: ignore[arg-type]
    *(MessageWatch(queue_name="orders", min_messages=value) for value in ("5", 3 * 10**9)),  # type: ignore[arg-type]
    # type: ignore[arg-type]
    *(MessageWatch(queue_name="mail", poll_interval=value) for value in ("10", None, float("nan"), float("inf"))),
    MessageWatch(queue_name="orders", min_messages=5, max_wait="10"),  # type: ignore[arg-type]
    DeadMessageWatch(queue_name="orders", results=5),  # type: ignore[arg-type]
    BrokenWatch(queue_name="orders"),
]
HARMLESS = [123, None, "", "Orders", b"orders"]  # alone, such a name is only one that no queue has


def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def first(conn_id: str, watch: Watch) -> Any:
    async with aclosing(hub.notification_stream(conn_id, watch)) as notifications:
        return await anext(notifications)


def test_whoever_waits_with_whatever_argument_hurts_nobody_else(
    conn_id: str, queue: Queue, conn: psycopg.Connection[Any]
) -> None:
    names = [queue(name) for name in ("orders", "mail", "bills")]
    hook = PgQueueHook(conn_id)
    hook.publish("orders", 2, conn=conn)
    with hook.lease("orders") as lease:
        lease.reject(lease[0], "it is dead")
    hook.publish("orders", 1, conn=conn)

    async def together() -> tuple[list[Any], list[Any]]:
        good = [asyncio.create_task(first(conn_id, MessageWatch(queue_name=name))) for name in names]
        bad = [asyncio.create_task(first(conn_id, watch)) for watch in HURTING]
        done = await asyncio.wait_for(good[0], 15)
        hurting = [task for task, watch in zip(bad, HURTING, strict=True) if watch.queue_name not in HARMLESS]
        await async_until(lambda: all(task.done() for task in hurting))
        for name in ("mail", "bills"):
            hook.publish(name, 1, conn=conn)
        heard = [done, *await asyncio.gather(*good[1:])]
        for task in bad:
            task.cancel()
        return heard, await asyncio.gather(*bad, return_exceptions=True)

    heard, errors = within(40, together())
    assert [notification["ready"] for notification in heard] == [1, 1, 1]
    assert [error for error in errors if not isinstance(error, BaseException)] == []


def test_a_trigger_with_a_good_name_that_no_queue_has_waits_for_it_and_says_so_once(
    conn_id: str, conn: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    hook = PgQueueHook(conn_id)

    async def wait() -> Any:
        trigger = PgQueueMessageTrigger(queue_name="orders", poll_interval=300)
        trigger.task_instance = SimpleNamespace(task_id="wait")  # type: ignore[assignment]
        stream = trigger.run()
        event = asyncio.ensure_future(anext(aiter(stream)))
        await async_until(lambda: "queue 'orders' does not exist" in caplog.text)
        conn.execute("SELECT messages.create_queue('orders', notify => 'off')")
        hook.publish("orders", 1, conn=conn)
        try:
            return await event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    assert within(20, wait()).payload["ready"] == 1
    assert caplog.text.count("does not exist") == 1


def test_a_sensor_of_a_queue_that_does_not_exist_says_so_in_its_own_log(
    conn_id: str, run: Run, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:

    with pytest.raises(TaskDeferred):
        run(PgQueueMessageSensor(task_id="wait", queue_name="nowhere"))
    assert "queue 'nowhere' does not exist" in caplog.text + capsys.readouterr().out
