"""Mistakes in DAGs that would lose work or tell something wrong, if nobody refused them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import DAG, TaskGroup, task

from airflow_provider_pgqueue.assets.pgqueue import create_asset, queue_of
from airflow_provider_pgqueue.core import InvalidArgument, InvalidMessage, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.notifications.pgqueue import PgQueueNotifier
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import (
    PgQueuePublishOperator,
    PgQueuePublishQueryOperator,
)
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
from tests.airflow_layer.airflow_versions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


# A dispatcher that starts runs of its own DAG -------------------------------------------------------------------------

OWN = "^trigger_dag_id is 'orders', the DAG of this task. Give the id of another DAG"


def test_a_dispatcher_of_its_own_dag_is_refused_where_it_is_written() -> None:
    given = {"task_id": "dispatch", "queue_name": "orders", "trigger_dag_id": "orders"}
    with DAG("orders", schedule=None), pytest.raises(InvalidArgument, match=OWN):
        PgQueueDispatchOperator(**given)
    with pytest.raises(InvalidArgument, match=OWN):
        PgQueueDispatchOperator(dag=DAG("orders", schedule=None), **given)
    with DAG("pack", schedule=None):
        assert PgQueueDispatchOperator(**given).trigger_dag_id == "orders"


def test_a_dispatcher_that_a_template_gives_its_own_dag_is_refused_before_anything_is_leased(
    conn_id: str, queue: Queue, conn: Connection, run: Run, context: dict[str, Any]
) -> None:
    conn.execute("SELECT messages.publish(%s, '1')", [queue("orders")])
    with DAG("orders", schedule=None):
        dispatch = PgQueueDispatchOperator(task_id="dispatch", queue_name="orders", trigger_dag_id="{{ ti.dag_id }}")
    dispatch.render_template_fields(context)
    with pytest.raises(InvalidArgument, match=OWN):
        run(dispatch)
    assert conn.execute("SELECT attempts, lock_token FROM messages.message").fetchall() == [(0, None)]


# A handler by name that cannot be called ------------------------------------------------------------------------------


@pytest.fixture
def packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with functions that take too few and too many arguments."""
    name = f"packing_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        "def none(): ...\ndef two(message, shop): ...\ndef one(message): ...\nclass NoModel: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name


UNCALLABLE: list[tuple[dict[str, Any], str]] = [
    ({"apply_function": "two"}, "^two cannot be called with a message.*missing a required argument: 'shop'"),
    ({"apply_function": "none"}, "^none cannot be called with a message.*too many positional arguments"),
    ({"apply_function_batch": "two"}, "^two cannot be called with a list of messages.*'shop'"),
    ({"apply_function": "one", "op_kwargs": {"shop": 1}}, "^one cannot be called with .*'shop'"),
    ({"apply_function": "one", "model": "NoModel"}, "^model is .*NoModel.*Give a pydantic model"),
]


def test_a_handler_by_name_that_cannot_be_called_costs_no_attempt(
    packing: str, conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    conn.execute("SELECT messages.publish(%s, '1')", [queue("orders")])
    for given, said in UNCALLABLE:
        named = {name: f"{packing}:{value}" if isinstance(value, str) else value for name, value in given.items()}
        with pytest.raises(InvalidArgument, match=said):
            run(PgQueueConsumeOperator(task_id="consume", queue_name="orders", **named))
        assert conn.execute("SELECT attempts FROM messages.message").fetchall() == [(0,)]
    good = {"apply_function": f"{packing}:two", "op_kwargs": {"shop": 1}}
    assert run(PgQueueConsumeOperator(task_id="consume", queue_name="orders", **good)) == {"success": 1}


def test_a_repair_whose_functions_cannot_be_called_is_refused(
    packing: str, conn_id: str, queue: Queue, run: Run
) -> None:
    queue("orders")
    for given, said in (
        ({"function": "two"}, "^two cannot be called with a dead message: missing a required argument: 'shop'"),
        ({"function": "one", "validator": "none"}, "^none cannot be called with a body: too many"),
    ):
        names: Any = {name: f"{packing}:{value}" for name, value in given.items()}
        with pytest.raises(InvalidArgument, match=said):
            run(PgQueueRequeueOperator(task_id="repair", queue_name="orders", **names))
        functions = {name: getattr(importlib.import_module(packing), value) for name, value in given.items()}
        with pytest.raises(InvalidArgument, match=said):
            PgQueueRequeueOperator(task_id="repair", queue_name="orders", **functions)


# A time that each server reads differently, and columns that get lost -----------------------------------------------


def test_a_query_with_two_columns_of_one_name_publishes_nothing(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    given = {"task_id": "publish", "queue_name": queue("orders"), "parameters": [1]}
    with pytest.raises(InvalidArgument, match=r"^sql has more than one column 'a'.* AS"):
        run(PgQueuePublishQueryOperator(**given, sql="SELECT %s AS a, 2 AS a, 3 AS b"))
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (0,)
    run(PgQueuePublishQueryOperator(**given, sql="SELECT %s AS a, 2 AS c -- a comment"))
    assert conn.execute("SELECT message FROM messages.message").fetchone() == ({"a": 1, "c": 2},)


# A URI as the id of a connection --------------------------------------------------------------------------------------

URIS = [
    "postgresql://user:SECRET@db/x",
    "host=db password=SECRET",
    "user:SECRET@db",
    "postgresql://{{ u }}:SECRET@db/x",
]


@pytest.mark.parametrize(
    "make", [partial(PgQueueMaintenanceOperator, task_id="t"), partial(create_asset, queue_name="q")]
)
def test_a_uri_is_no_id_of_a_connection_and_is_not_repeated(make: Any) -> None:
    for uri in URIS:
        with pytest.raises(InvalidArgument, match=r"^pgqueue_conn_id is a URI .*give its id") as error:
            make(pgqueue_conn_id=uri)
        assert "SECRET" not in "".join(traceback.format_exception(error.value))


def test_a_uri_that_only_the_task_knows_is_not_repeated_either(
    run: Run, context: dict[str, Any], dsn: str, airflow_connection: Callable[..., str]
) -> None:
    with DAG("templates", schedule=None):
        task = PgQueueConsumeOperator(
            task_id="t", queue_name="orders", apply_function=print, pgqueue_conn_id="{{ uri }}"
        )
    task.render_template_fields(context | {"uri": URIS[0]})
    with pytest.raises(InvalidArgument, match=r"^pgqueue_conn_id is a URI"):
        run(task)
    with pytest.raises(AirflowNotFoundException, match="is a URI") as error:
        PgQueueHook(URIS[0]).connect()
    assert "SECRET" not in "".join(traceback.format_exception(error.value))
    airflow_connection(dsn, "pooled", extra={"listen_conn_id": URIS[0]})
    with pytest.raises(AirflowNotFoundException, match="is a URI") as error:
        asyncio.run(PgQueueHook("pooled").alisten_arguments())
    assert "SECRET" not in "".join(traceback.format_exception(error.value))


def test_a_template_that_compares_may_name_a_connection() -> None:
    name = "{{ 'one' if params.x == 'a@b' else 'two' }}"
    assert PgQueueMaintenanceOperator(task_id="t", pgqueue_conn_id=name).pgqueue_conn_id == name


@pytest.mark.parametrize("uri", ["pgqueue://user:SECRET@pgqueue_default/orders", "pgqueue://user:SECRET@db:5432/a/b"])
def test_the_uri_of_a_queue_with_a_login_is_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^queue is a URI with a login.*neither login") as error:
        queue_of(uri)
    assert "SECRET" not in str(error.value)


def test_the_connection_of_a_query_is_named_by_its_argument(conn_id: str, queue: Queue, run: Run) -> None:
    given = {"task_id": "publish", "queue_name": queue("orders"), "sql": "SELECT 1"}
    with pytest.raises(AirflowNotFoundException, match=r"^sql_conn_id: Airflow has no connection 'nope'"):
        run(PgQueuePublishQueryOperator(**given, sql_conn_id="nope"))


# A notifier that is checked when it is made
# ----------------------------------------------------------------------------


def test_a_notifier_with_templates_is_checked_when_it_is_called_back() -> None:
    PgQueueNotifier(queue_name="{{ name }}", topic="{{ ti.task_id }}.failed", message={"run": "{{ run_id }}"})


# Arguments that contradict each other, and errors that name what to do ------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"messages": [1, 2], "on_conflict": "replace"}, "^on_conflict is 'replace', and there are several messages"),
        ({"message": 1, "dedup_key": None, "dedup_window": timedelta(hours=1)}, "^dedup_window is given"),
        (
            {"message": 1, "delay": timedelta(1), "visible_at": datetime(2027, 1, 1, tzinfo=UTC)},
            "^delay and visible_at",
        ),
        ({"messages": lambda x: [x]}, "^messages is a function that .* without arguments: .*'x'"),
        ({"message": float("nan")}, "^message is a float. The value is not JSON: it has NaN or Infinity"),
        ({"message": 1, "delay": "60"}, r"^delay is '60'\. Give a timedelta or a number of seconds"),
        (
            {"message": 1, "expires_in": timedelta(minutes=1), "delay": timedelta(hours=1)},
            "^expires_in is 0:01:00, and delay 1:00:00: .* Give a longer expires_in",
        ),
        (
            {"message": 1, "dedup_key": None, "on_conflict": "replace"},
            "^on_conflict is 'replace', and dedup_key is None",
        ),
        ({"message": 1, "topic": "orders.*"}, r"^topic is 'orders\.\*'\. Use words"),
        ({"message": 1, "group_key": "x" * 256}, "^group_key is 'xxx.*1 to 255 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_publish_that_would_do_something_else_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PgQueuePublishOperator(**{"task_id": "publish", "queue_name": "orders"} | given)


def test_messages_that_another_task_did_not_return_are_told_as_that(
    conn_id: str, queue: Queue, run: Run, context: dict[str, Any]
) -> None:
    with DAG("upstream", schedule=None):

        @task
        def rows() -> None: ...

        made = PgQueuePublishOperator(task_id="publish", queue_name=queue("orders"), messages=rows())
    context["ti"].xcom_pull = lambda *args, **kwargs: None
    with pytest.raises(InvalidArgument, match=r"^messages is None: the other task returned nothing"):
        run(made)


def test_a_function_that_returns_no_messages_is_named(conn_id: str, queue: Queue, run: Run) -> None:
    with pytest.raises(InvalidArgument, match=r"^the function of messages returned an int"):
        run(PgQueuePublishOperator(task_id="publish", queue_name=queue("orders"), messages=lambda: 7))


def test_a_stream_of_messages_replaces_no_single_one(conn_id: str, queue: Queue, conn: Connection, run: Run) -> None:
    given = {"task_id": "publish", "queue_name": queue("orders"), "dedup_key": "k", "on_conflict": "replace"}
    run(PgQueuePublishOperator(**given, messages=lambda: iter([1])))
    with pytest.raises(InvalidArgument, match=r"^on_conflict is 'replace', and there are several messages"):
        run(PgQueuePublishOperator(**given, messages=lambda: iter([2, 3]), batch_size=1))
    run(PgQueuePublishOperator(**given, messages=lambda: iter([4])))
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [(4,)]


def test_a_duration_is_a_timedelta_or_a_number_of_seconds(conn_id: str, conn: Connection, run: Run) -> None:
    lengths = (90, timedelta(seconds=90))
    queues = [{"queue_name": f"orders_{number}", "lease_for": length} for number, length in enumerate(lengths)]
    run(PgQueueSetupOperator(task_id="setup", queues=queues))
    found = conn.execute("SELECT lease_for FROM messages.queue WHERE queue_name LIKE 'orders%'").fetchall()
    assert found == [(timedelta(seconds=90),)] * 2
    for length in lengths:
        waits = {"poll_interval": length, "max_wait": length}
        sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders", min_messages=2, **waits)
        _, stored = sensor._trigger(notify_after=length).serialize()
        assert [stored[name] for name in ("poll_interval", "max_wait", "notify_after")] == [90, 90, 90]
        json.dumps(stored)


def test_a_time_that_ends_before_it_begins_is_refused(run: Run, context: dict[str, Any]) -> None:
    given = {"task_id": "requeue", "queue_name": "orders", "until": "2026-06-01T06:00:00+02:00"}
    with pytest.raises(InvalidArgument, match=r"^since is 2026-06-08.*Give since first"):
        PgQueueRequeueOperator(**given, since="2026-06-08T06:00:00+02:00")
    with DAG("templates", schedule=None):
        requeue = PgQueueRequeueOperator(**given, since="{{ at }}")
    requeue.render_template_fields(context | {"at": "2026-06-08T06:00:00+02:00"})
    with pytest.raises(InvalidArgument, match=r"^since is 2026-06-08.*Give since first"):
        run(requeue)


def test_a_resolution_without_a_queue_and_without_messages_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^queue_name is None\. Name a queue, or messages by ids, cause"):
        PgQueueRequeueOperator(task_id="again", queue_name=None, results=["failed"])
    PgQueueRequeueOperator(task_id="again", queue_name=None, ids=[1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_requeues": 0}, "^max_requeues is 0. Give a whole number from 1"),
        ({"canary": 5, "stop_when_failing": 0}, "^stop_when_failing is 0"),
    ],
)
def test_what_a_resolution_would_refuse_when_it_runs_is_refused_where_it_is_written(given: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PgQueueRequeueOperator(task_id="again", queue_name="orders", **given)


@pytest.mark.parametrize("argument", ["queue_name", "ids", "cause", "topic"])
def test_none_from_a_template_does_not_choose_all_messages(argument: str, context: dict[str, Any], run: Run) -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        requeue = PgQueueRequeueOperator(task_id="again", **({"queue_name": "orders"} | {argument: "{{ chosen }}"}))
    requeue.render_template_fields(context | {"chosen": None})
    with pytest.raises(InvalidArgument, match=f"^{argument} is None. A template or task made it, and None would take"):
        run(requeue)


# What waited until its time was over, and what the next task gets -----------------------------------------------------

TIMED_OUT = {"error": "Trigger timeout"}


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (
            lambda: PgQueueMessageSensor(
                task_id="t", queue_name="orders", min_messages=5, timeout=timedelta(minutes=3)
            ),
            r"messages of queue 'orders' \(min_messages=5\) until the timeout of 0:03:00 was over",
        ),
        (
            lambda: PgQueueDeadMessageSensor(task_id="t", queue_name="orders", results=["failed"], timeout=90),
            r"dead messages of queue 'orders' \(results=\['failed'\]\) until the timeout of 0:01:30",
        ),
        (
            lambda: PgQueueOutcomeSensor(task_id="t", ids=7, timeout=1),
            r"the end of message 7 until the timeout of 0:00:01",
        ),
        (
            lambda: PgQueueConsumeOperator(
                task_id="t",
                queue_name="orders",
                apply_function=print,
                wait_for_messages=True,
                wait_timeout=timedelta(hours=1),
            ),
            r"messages of queue 'orders' until the wait_timeout of 1:00:00",
        ),
        (
            lambda: PgQueueDispatchOperator(
                task_id="t",
                queue_name="orders",
                trigger_dag_id="pack",
                wait_for_messages=True,
                wait_timeout=timedelta(hours=1),
            ),
            r"an end of runs, or messages of queue 'orders' until the wait_timeout",
        ),
    ],
)
def test_a_wait_that_is_over_names_queue_filter_and_time(waiting: Callable[[], Any], said: str) -> None:
    with pytest.raises(AirflowException, match=f"waited for {said}"):
        waiting().resume_execution("__fail__", dict(TIMED_OUT), {})


def test_a_sensor_that_times_out_softly_is_skipped() -> None:
    sensor = PgQueueMessageSensor(task_id="t", queue_name="orders", soft_fail=True)
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("__fail__", dict(TIMED_OUT), {})


def test_the_output_of_a_sensor_is_an_object_for_the_next_task() -> None:
    with DAG("d", schedule=None):
        sensor = PgQueueMessageSensor(task_id="wait", queue_name="orders")

        @task
        def read(notification: Any, ready: Any) -> None: ...

        reading = read(sensor.output, sensor.output["ready"]).operator
    assert reading.upstream_task_ids == {"wait"}
    for stored in ('{"ready": 3}', {"ready": 3}):
        context = {"ti": SimpleNamespace(xcom_pull=lambda stored=stored, **which: stored, run_id="r", task=reading)}
        assert [one.resolve(context) for one in reading.op_args] == [{"ready": 3}, 3]


SETTINGS = """
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
tasks = [
    PgQueueConsumeOperator(task_id="a", queue_name="q", apply_function=print),
    PgQueueMessageSensor(task_id="c", queue_name="q"),
    PgQueueOutcomeSensor(task_id="d", ids=1),
    PgQueuePublishOperator(task_id="e", queue_name="q", message=1),
]
print("retries", [task.retries for task in tasks])
"""


def test_the_default_number_of_retries_is_that_of_airflow() -> None:
    environment = os.environ | {"AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "3"}
    done = subprocess.run([sys.executable, "-c", SETTINGS], env=environment, capture_output=True, text=True, check=True)
    assert "retries [3, 3, 3, 3]" in done.stdout


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (PgQueueConsumeOperator, {"apply_function": print, "batch_sise": 5}),
        (PgQueuePublishOperator, {"message": 1, "topik": "eu"}),
        (PgQueueDispatchOperator, {"trigger_dag_id": "pack", "pol": "slow"}),
        (PgQueueMessageSensor, {"min_message": 1}),
        (PgQueueRequeueOperator, {"fuction": print}),
        (PgQueueSetupOperator, {"zzz": 1}),
    ],
)
def test_an_argument_that_a_task_does_not_have_is_refused_by_airflow_when_the_dag_is_parsed(
    kind: type[Any], given: dict[str, Any]
) -> None:
    queue_name = {} if kind is PgQueueSetupOperator else {"queue_name": "orders"}
    *_, unknown = given
    with pytest.raises(TypeError, match=rf"Invalid arguments were passed to {kind.__name__} \(task_id: t\)") as error:
        kind(task_id="t", **queue_name, **given)
    assert str(error.value).endswith(f"{{{unknown!r}: {given[unknown]!r}}}")
    with DAG("d", schedule=None, default_args={unknown: 1, "retries": 2, "owner": "me"}):
        assert kind(task_id="t", **queue_name, **{n: v for n, v in given.items() if n != unknown}).retries == 2


def test_an_argument_that_is_needed_and_missing_is_named_by_airflow() -> None:
    with pytest.raises(TypeError, match=r"^missing keyword argument 'queue_name'"):
        PgQueueConsumeOperator(task_id="t", queue_nam="orders", apply_function=print)


@pytest.mark.parametrize(
    ("kind", "given", "other"),
    [
        (partial(PgQueueConsumeOperator, apply_function=print), {"wait_timeout": timedelta(1)}, "wait_for_messages"),
        (partial(PgQueueDispatchOperator, trigger_dag_id="pack"), {"poll_interval": 5.0}, "wait_for_messages"),
        (partial(PgQueueDispatchOperator, trigger_dag_id="pack"), {"group_by": "topic"}, "batch_size"),
        (PgQueueMessageSensor, {"max_wait": 60}, "min_messages"),
        (PgQueueRequeueOperator, {"canary_wait": timedelta(1)}, "canary"),
        (PgQueueRequeueOperator, {"stop_when_failing": 50}, "canary"),
    ],
)
def test_an_argument_that_would_do_nothing_is_refused(kind: Any, given: dict[str, Any], other: str) -> None:
    (name,) = given
    with pytest.raises(InvalidArgument, match=f"^{name} is given, and does nothing while {other} is .* Give {other}"):
        kind(task_id="t", queue_name="orders", **given)
    with DAG("d", schedule=None, default_args=given):
        kind(task_id="t", queue_name="orders")
        with TaskGroup("g", default_args=given):
            kind(task_id="t", queue_name="orders")
    kind(task_id="t", queue_name="orders", default_args=given)


# What is green only if it did something -------------------------------------------------------------------------------


def test_ids_that_no_dead_message_has_fail_the_task_and_no_ids_are_a_warning(
    conn_id: str, queue: Queue, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"task_id": "again", "queue_name": queue("orders")}
    with pytest.raises(AirflowFailException, match=r"^No dead message of orders has the id 98, 99: check the ids"):
        run(PgQueueRequeueOperator(**given, ids=[98, 99]))
    assert run(PgQueueRequeueOperator(**given, ids="[98]", fail_on=["stopped"]))["unknown"] == 1
    assert "No dead message of orders has the id 98" in capsys.readouterr().out
    for empty in ({"ids": []}, {"ids": "[]"}, {"fingerprints": []}):
        assert run(PgQueueRequeueOperator(**given, **empty))["requeued"] == 0
        assert f"{next(iter(empty))} is empty, so no message was chosen" in capsys.readouterr().out


def test_a_wait_for_a_queue_that_gives_nothing_says_what_is_wrong_with_it(
    conn_id: str, queue: Queue, conn: Connection
) -> None:
    def waited_for(name: str) -> str:
        with pytest.raises(AirflowSensorTimeout) as error:
            PgQueueMessageSensor(task_id="t", queue_name=name).resume_execution("__fail__", dict(TIMED_OUT), {})
        return str(error.value)

    assert "The queue 'ordres' does not exist, or this login may not see it. Check the name" in waited_for("ordres")
    assert "Give it more time" in waited_for(queue("orders"))
    conn.execute("SELECT messages.pause_queue('orders')")
    assert waited_for("orders").endswith("The queue 'orders' is paused. Resume it.")


# Functions that cannot be called --------------------------------------------------------------------------------------


def generates(message: Any) -> Any:
    yield message


async def generates_later(message: Any) -> Any:
    yield message


def pack(message: Any, shop: str = "") -> None: ...


@pytest.mark.parametrize("function", [generates, generates_later, partial(generates)])
def test_a_generator_function_is_refused_where_it_is_written(function: Any) -> None:
    for given in ({"apply_function": function}, {"apply_function_batch": function}):
        with pytest.raises(InvalidArgument, match=r"^generates(_later)? is a generator function"):
            PgQueueConsumeOperator(task_id="t", queue_name="orders", **given)
    with pytest.raises(InvalidArgument, match=r"^generates(_later)? is a generator function"):
        PgQueueRequeueOperator(task_id="t", queue_name="orders", function=function)


@pytest.mark.parametrize("function", [partial(pack, 1, 2), partial(pack, 1, "x", 3), partial(pack, store="x")])
def test_a_partial_that_cannot_be_called_is_refused_where_it_is_written(function: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^pack cannot be called with a message"):
        PgQueueConsumeOperator(task_id="t", queue_name="orders", apply_function=function)
    PgQueueConsumeOperator(task_id="t", queue_name="orders", apply_function=partial(pack, shop="x"))


# Values of a wrong type -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"max_attempts": "many"}, "max_attempts is 'many'. Give a whole number"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5"),
        ({"max_leased": True}, "max_leased is True"),
        ({"paused": "no"}, "paused is 'no'. Give True or False"),
        ({"lease_for": [5]}, r"lease_for is \[5\]. Give a timedelta"),
        ({"notify": 5}, "notify is 5. Give a text"),
    ],
    ids=str,
)
def test_a_policy_of_a_wrong_type_is_told_with_queue_and_argument(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"In queue 'orders', {said}"):
        PgQueueSetupOperator(task_id="t", queues=["mail", {"queue_name": "orders", **policy}])
    with pytest.raises(InvalidArgument, match=f"^{said}"):
        verbs.create_queue("orders", **policy)


def test_an_argument_that_the_server_cannot_read_is_named(conn_id: str, queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match=r'^max_messages: .*"x".*Give each argument a value of its type'):
        PgQueueHook(conn_id).run(verbs.lease(queue("orders"), max_messages="x"))  # type: ignore[arg-type]


def test_what_is_not_json_is_told_with_its_place(conn_id: str, queue: Queue, run: Run) -> None:
    body = {"lines": [1, {"price": float("nan")}], "dana@example.com": 1}
    with pytest.raises(InvalidArgument, match=r"^message is a dict\. .* at \.lines\[1\]\.price\. Give None or a text"):
        PgQueuePublishOperator(task_id="t", queue_name="orders", message=body)
    with pytest.raises(InvalidMessage, match=r"^messages\[2\]: .* at \.lines\[1\]\.price\."):
        run(PgQueuePublishOperator(task_id="t", queue_name=queue("orders"), messages=[1, 2, body]))
    with pytest.raises(InvalidMessage, match=r"^messages\[1\]: .* at \[0\]\.a"):
        PgQueueHook(conn_id).publish_batch("orders", [1, [{"a": object()}]])
    for value in (float("inf"), {1, 2}, "\ud800"):
        with pytest.raises(InvalidMessage, match=r", at \.\(key 1\)\."):
            PgQueueHook(conn_id).publish("orders", {"dana@example.com": value})
