"""A bad argument is an error of the DAG that has it, and of no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow import sdk
from airflow.sdk import DAG

from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.core.argument import check, json_object
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator, PgQueueReconcileOperator
from airflow_provider_pgqueue.operators.dispatch_dead import PgQueueDispatchDeadOperator
from airflow_provider_pgqueue.operators.publish import (
    PgQueuePublishOperator,
    PgQueuePublishQueryOperator,
    PgQueueRequestOperator,
)
from airflow_provider_pgqueue.operators.repair import PgQueueRepairOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.operators.schedule import PgQueueScheduleOperator
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator
from airflow_provider_pgqueue.operators.upkeep import PgQueueUpkeepOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
from airflow_provider_pgqueue.tasks.task import QueueTask
from airflow_provider_pgqueue.triggers import hub
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.watch import DeadMessageWatch, MessageWatch, Watch
from tests.airflow_layer.of_airflow import DagBag, TaskDeferred
from tests.waiting import async_until

Queue = Callable[..., str]
Run = Callable[..., Any]
NAMES = [123, None, "a\x00b", "\ud800", "", "Orders", ["orders"], b"orders", {"a": 1}]
WAITING = [
    *({"queue_name": name} for name in NAMES),
    *({"poll_interval": value} for value in ("10", None, 0, -1, float("nan"), float("inf"), True)),
    {"pgqueue_conn_id": None},
]
TIMEOUTS = [{"timeout": value} for value in (float("inf"), float("nan"), -1, "60", timedelta(days=-1))]
MESSAGES = [
    *({"min_messages": value} for value in ("5", 0, 3 * 10**9, None, 1.5)),
    *({"max_wait": value} for value in ("10", -1, float("nan"))),
    {"topic": "a..b"},
]
CONSUME = [
    {"apply_function": None},
    {"apply_function": "no_such_module:handle"},
    {"apply_function": "json:no_such"},
    {"apply_function_batch": print},
    {"batch_size": 0},
    {"batch_size": 10_001},
    *({"op_args": value} for value in (0.5, print, "text", None)),
    *({"op_kwargs": value} for value in ([1], {1: 2}, print)),
    {"max_messages": 0},
    {"lease_for": 43201},
    {"wait_timeout": "60"},
    *({"model": model} for model in (5, "no_such.json", "json:no_such", dict)),
]
UNSTORABLE = [{"a": "x\0y"}, {"a\0": 1}, {"a": [{"b": ("\0",)}]}, {"a": "\\\0"}, {"a": "\ud800"}]
GOOD: dict[type[QueueTask], dict[str, Any]] = {
    PgQueueMessageSensor: {"queue_name": "orders"},
    PgQueueDeadMessageSensor: {"queue_name": "orders"},
    PgQueueOutcomeSensor: {"message_id": 7},
    PgQueueConsumeOperator: {"queue_name": "orders", "apply_function": print},
    PgQueueDispatchOperator: {"queue_name": "orders", "trigger_dag_id": "pack"},
    PgQueueReconcileOperator: {},
    PgQueueDispatchDeadOperator: {"queue_name": "orders", "trigger_dag_id": "mend"},
    PgQueuePublishOperator: {"queue_name": "orders", "message": 1},
    PgQueuePublishQueryOperator: {"queue_name": "orders", "sql": "SELECT 1"},
    PgQueueRequestOperator: {"queue_name": "orders", "message": 1},
    PgQueueRepairOperator: {"queue_name": "orders", "function": print},
    PgQueueRequeueOperator: {"queue_name": "orders"},
    PgQueueSparkOperator: {"pipeline": "drain", "arguments": {"queue": "{{ params.queue }}"}},
    PgQueueScheduleOperator: {"schedule_name": "s", "cron": "@daily", "queue_name": "orders", "message": 1},
    PgQueueSetupOperator: {},
    PgQueueUpkeepOperator: {},
}
BAD: dict[type[QueueTask], list[dict[str, Any]]] = {
    PgQueueMessageSensor: WAITING + MESSAGES + TIMEOUTS,
    PgQueueDeadMessageSensor: [*WAITING, {"results": ["no"]}, {"results": "failed"}],
    PgQueueOutcomeSensor: [
        *({"message_id": value} for value in (0, -1, "x", None, 2**63, True, 1.5, {}, "²")),
        *({"with_output": "yes"}, {"follow_requeues": 1}, {"poll_interval": 0}, {"timeout": "60"}),
    ],
    PgQueueConsumeOperator: WAITING + CONSUME,
    PgQueueDispatchOperator: [
        *WAITING,
        *({"max_open": value} for value in (0, 10_001, "5")),
        *({"batch_size": 0}, {"trigger_dag_id": 5}, {"group_by": "colour"}, {"on_failure": "weep"}),
        *({"conf": [1]}, {"conf": {"a": "x\0y"}}, {"lease_for": timedelta(hours=13)}, {"lease_for": 43201}),
    ],
    PgQueueDispatchDeadOperator: [
        *({"queue_name": name} for name in NAMES),
        *({"max_open": 0}, {"batch_size": "5"}, {"trigger_dag_id": 5}, {"results": ["success"]}, {"conf": [1]}),
        *({"retry_after": value} for value in ("60", timedelta(days=2), timedelta(seconds=-1))),
        {"max_requeues": -1},
    ],
    PgQueueReconcileOperator: [{"queue_name": "No Queue"}, {"trigger_dag_id": 5}],
    PgQueuePublishOperator: [
        *({"queue_name": name} for name in NAMES),
        {"message": None},
        {"messages": [1]},
        {"message": None, "messages": "text"},
        {"message": None, "messages": sdk.task(lambda: [1])},
        {"batch_size": 0},
        {"priority": 10},
        {"delay": -5},
        *({"visible_at": "now"}, {"dedup_window": timedelta(0)}, {"on_conflict": "weep"}),
        {"headers": [1]},
        *({"headers": headers} for headers in UNSTORABLE),
        *({"message": [message]} for message in UNSTORABLE),
        {"origin": 1},
        {"group_key": "{{ key }}\0"},
        {"headers": {"a\0": "{{ key }}"}},
    ],
    PgQueuePublishQueryOperator: [
        *({"sql": value} for value in (None, 1, "")),
        *({"parameters": value} for value in (["a\0"], "text")),
        *({"sql_conn_id": 1}, {"batch_size": 0}, {"one_transaction": 1}, {"priority": 10}),
    ],
    PgQueueRequestOperator: [
        *({"message": None}, {"messages": [1]}, {"priority": 10}),
        *({"wait_timeout": "60"}, {"with_output": None}, {"poll_interval": 0}, {"deferrable": "no"}),
    ],
    PgQueueSparkOperator: [
        *({"pipeline": None}, {"arguments": [1]}, {"send_connection": "no"}, {"run_id": ""}, {"fail_on": "stopped"}),
        *({"arguments": {name: "x"}} for name in ("run_id", "run-id", "dsn")),
    ],
    PgQueueRepairOperator: [
        *({"function": value} for value in ("json:no", None)),
        *({"validator": value} for value in (5, "no_such.json", "json:no", Path("schema.json"))),
        *({"fail_on": value} for value in (["requeued"], "raised", "stopped")),
        {"batch_size": 0},
        {"results": ["success"]},
    ],
    PgQueueRequeueOperator: [
        *({"queue_name": 5}, {"max_messages": 0}, {"results": []}, {"dry_run": "yes"}),
        *({"ids": value} for value in (5, ["1"], [0], [True], "1, 2", "[1.5]", "{}")),
        *({"since": value} for value in (5, "yesterday", "2026-01-01T00:00:00", datetime(2026, 1, 1))),
        *({"topic": "a..b"}, {"headers": "x"}, {"reference": ""}, {"cause": 5}, {"canary": -1}),
    ],
    PgQueueScheduleOperator: [
        *({"schedule_name": "S"}, {"queue_name": None}, {"cron": 5}, {"priority": "1"}),
        {"message": {"a": "x\0y"}},
    ],
    PgQueueSetupOperator: [
        *({"cron": "yes"}, {"pgqueue_conn_id": 5}, {"dry_run": "yes"}),
        *({"queues": value} for value in (5, None, "Orders", [5], b"orders", [None], {"queue_name": "orders"})),
        *({"queues": [value]} for value in ({"queue_nam": "x"}, {}, {"queue_name": 5}, {"queue_name": "a", "max": 1})),
        *({"grants": value} for value in ([1], {"boss": "shop"}, {"publisher": 5}, {"publisher": [5]}, "publisher")),
        *({"queue_grants": value} for value in ([1], {"orders": "shop"}, {"orders": {"own": "shop"}}, {1: {}})),
        {"queue_grants": {"orders": {"publish": None}}},
    ],
    PgQueueUpkeepOperator: [{"skip_if_pg_cron": 1}],
}
CASES = [(kind, bad) for kind, some in BAD.items() for bad in some]


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_good_arguments_are_taken(kind: type[QueueTask]) -> None:
    assert kind(task_id="good", **GOOD[kind]).task_id == "good"


def named(value: Any) -> str:
    """Name a case without addresses, which differ between the processes that share the tests."""
    return getattr(value, "__name__", None) or re.sub(" at 0x[0-9a-f]+", "", ascii(value))


@pytest.mark.parametrize(("kind", "bad"), CASES, ids=named)
def test_a_bad_argument_is_named_where_it_is_written(kind: type[QueueTask], bad: dict[str, Any]) -> None:
    given = GOOD[kind] | bad
    with pytest.raises(InvalidArgument) as error:
        kind(task_id="bad", **given)
    assert any(name.split("_")[0] in str(error.value) for name in bad), error.value
    assert str(error.value).endswith(".")


@pytest.mark.parametrize("name", ["headers", "message", "messages", "parameters", "arguments"])
@pytest.mark.parametrize("value", ["SECRET", {"SECRET": object(), "b": "SECRET\0"}, b"SECRET"], ids=type)
def test_an_argument_that_may_hold_secrets_is_not_shown(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} is a {type(value).__name__}") as error:
        check({name: value}, {name: lambda value: "Give something else."})
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("text", ["\\u0000", "a\\\\u0000", "C:\\u0000"])
def test_a_text_that_only_looks_like_nul_in_json_is_taken(text: str) -> None:
    assert json_object({text: [text]}) is None


def test_every_task_of_ours_is_tried_here() -> None:
    def leaves(kind: type[QueueTask]) -> list[type[QueueTask]]:
        # What the decorator makes is a consume operator with other names for its arguments.
        subclasses = [one for one in kind.__subclasses__() if ".decorators." not in one.__module__]
        return [leaf for one in subclasses for leaf in (leaves(one) or [one])]

    ours = {kind for kind in leaves(QueueTask) if kind.__module__.startswith("airflow_provider_pgqueue")}
    assert ours == set(GOOD) == set(BAD)


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
        task = PgQueuePublishOperator(task_id="publish", **GOOD[PgQueuePublishOperator] | {name: "{{ nothing }}"})
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


@pytest.mark.parametrize("kind", [PgQueueMessageTrigger, PgQueueDeadMessageTrigger])
@pytest.mark.parametrize("bad", WAITING, ids=ascii)
def test_a_bad_argument_of_a_trigger_is_one_that_a_triggerer_outlives(kind: type[Any], bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as error:
        kind(**({"queue_name": "orders"} | bad))
    assert isinstance(error.value, TypeError), "Airflow catches no other error of a trigger's __init__"


@pytest.mark.parametrize("bad", [*MESSAGES, {"ring_every": "1"}, {"end_task": 1}, {"ring_after": None}], ids=ascii)
def test_a_bad_argument_of_a_message_trigger_is_named(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(bad))):
        PgQueueMessageTrigger(**({"queue_name": "orders"} | bad))


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

    def hear(self, rows: Any, now: float) -> Any:
        raise RuntimeError("it is broken")


HURTING: list[Watch] = [
    *(MessageWatch(queue_name=name) for name in NAMES),  # type: ignore[arg-type]
    *(DeadMessageWatch(queue_name=name) for name in NAMES),  # type: ignore[arg-type]
    *(MessageWatch(queue_name="orders", min_messages=value) for value in ("5", 3 * 10**9)),  # type: ignore[arg-type]
    *(MessageWatch(queue_name="mail", poll_interval=value) for value in ("10", None, float("nan"), float("inf"))),  # type: ignore[arg-type]
    MessageWatch(queue_name="orders", min_messages=5, max_wait="10"),  # type: ignore[arg-type]
    MessageWatch(queue_name="orders", topic="a..b"),
    MessageWatch(queue_name="orders", topic="a\0"),
    DeadMessageWatch(queue_name="orders", results=5),  # type: ignore[arg-type]
    BrokenWatch(queue_name="orders"),
]
HARMLESS = [123, None, "", "Orders", b"orders"]  # alone, such a name is only one that no queue has


def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def first(conn_id: str, watch: Watch) -> Any:
    async with aclosing(hub.rings(conn_id, watch)) as doorbells:
        return await anext(doorbells)


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
    assert [doorbell["ready"] for doorbell in heard] == [1, 1, 1]
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
