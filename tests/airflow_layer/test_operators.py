"""The operators, executed against a real queue."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from airflow.sdk import DAG, literal

from airflow_provider_pgqueue.core import (
    KEEP,
    LEAVE,
    ConnectionFailed,
    DeadMessage,
    Dismiss,
    Failed,
    HandlerBroken,
    InvalidArgument,
    InvalidMessage,
    Message,
    Outcome,
    QueueNotFound,
    QueuePaused,
    Rejected,
    RejectMessage,
    Retry,
    verbs,
)
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator, PgQueuePublishQueryOperator
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.task import DOUBLED
from tests.airflow_layer.airflow_versions import (
    AIRFLOW,
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagSerialization,
    TaskDeferred,
)
from tests.options import KEPT, lost

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]
HOSTILE = [{"a": "{{ 7*7 }}"}, {"__classname__": "x", "__data__": 1}, {"__type": "set", "__var": [1]}]


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


def results(conn: Connection) -> dict[Any, str]:
    return dict(conn.execute("SELECT message, result FROM messages.message_archive").fetchall())


def publish(**arguments: Any) -> PgQueuePublishOperator:
    return PgQueuePublishOperator(task_id="publish", queue_name="orders", **arguments)


def publish_query(**arguments: Any) -> PgQueuePublishQueryOperator:
    return PgQueuePublishQueryOperator(task_id="publish", queue_name="orders", **arguments)


def consume(**arguments: Any) -> PgQueueConsumeOperator:
    return PgQueueConsumeOperator(**({"task_id": "consume", "queue_name": "orders"} | arguments))


# Setup and maintenance
# -----------------------------------------------------------------------------------------------------


def test_a_dry_run_of_the_setup_says_what_it_would_do_and_changes_nothing_and_the_setup_does_it(
    empty_dsn: str, airflow_connection: Callable[..., str], run: Run
) -> None:
    airflow_connection(empty_dsn)

    def schema(conn: Connection) -> Any:
        return conn.execute("SELECT to_regnamespace('messages'), count(*) FROM pg_class").fetchone()

    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        before = schema(conn)
        arguments: dict[str, Any] = {"task_id": "setup", "queues": ["orders"], "cron": False}
        dry = run(PgQueueSetupOperator(**arguments, dry_run=True))
        assert (dry["queues_created"], dry["migrations_applied"]) == (["orders"], [1])
        assert schema(conn) == before
        assert run(PgQueueSetupOperator(**arguments)) == dry
        assert run(publish(message=1))["published"] == 1
        # What cannot be done is said, and the rest of it is not done either.
        with pytest.raises(InvalidArgument, match="nobody_at_all"):
            run(
                PgQueueSetupOperator(
                    **arguments | {"queues": ["bills"]}, grants={"publisher": "nobody_at_all"}, dry_run=True
                )
            )
        again = run(PgQueueSetupOperator(**arguments | {"queues": ["orders", "bills"]}, dry_run=True))
        assert (again["queues_created"], again["migrations_applied"]) == (["bills"], [])
        assert conn.execute("SELECT queue_name FROM messages.queue WHERE queue_name = 'bills'").fetchone() is None


def test_each_option_that_a_message_keeps_is_an_argument(
    conn: Connection, conn_id: str, queue: Queue, run: Run
) -> None:
    run(PgQueuePublishOperator(task_id="publish", queue_name=queue("orders"), message=1, origin=False, **KEPT))
    ((row,),) = conn.execute("SELECT to_jsonb(m) FROM messages.message m").fetchall()
    assert lost(row) == {}


def test_maintenance_archives_what_expired(conn_id: str, queue: Queue, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1, expires_in=timedelta(milliseconds=1))
    assert run(PgQueueMaintenanceOperator(task_id="maintenance"))["archived"] == 1


@pytest.mark.cron
def test_maintenance_is_skipped_where_pg_cron_does_it(
    cron_dsn: str, airflow_connection: Callable[..., str], run: Run
) -> None:
    airflow_connection(cron_dsn)
    assert run(PgQueueSetupOperator(task_id="setup"))["maintenance_mode"] == "pg_cron"
    with pytest.raises(AirflowSkipException):
        run(PgQueueMaintenanceOperator(task_id="maintenance", skip_if_pg_cron=True))


# Publish --------------------------------------------------------------------------------------------------------------


def test_a_stream_is_published_in_batches_and_in_order(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    summary = run(publish(messages=lambda: iter(range(250)), batch_size=100))
    assert bodies(conn) == list(range(250))
    assert (summary["published"], summary["last_id"] - summary["first_id"]) == (250, 249)
    assert "ids" not in summary


def test_nothing_to_publish_is_no_error(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    assert run(publish(messages=[]))["published"] == 0
    assert run(publish_query(sql="SELECT 1 WHERE false"))["published"] == 0


def test_the_rows_of_a_query_become_bodies(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    query = "SELECT n, n * 1.10 AS price, DATE '2013-01-01' AS day FROM generate_series(1, 3) AS n WHERE n > %s; "
    assert run(publish_query(sql=query, parameters=[1], batch_size=1))["published"] == 2
    assert bodies(conn) == [
        {"n": 2, "price": 2.2, "day": "2013-01-01"},
        {"n": 3, "price": 3.3, "day": "2013-01-01"},
    ]


def test_a_number_of_a_query_keeps_all_its_digits(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    run(publish_query(sql="SELECT 12345678901234567890.123456789 AS n, '100%' AS share"))
    row = conn.execute("SELECT (message->>'n')::numeric, message->>'share' FROM messages.message").fetchone()
    assert row == (Decimal("12345678901234567890.123456789"), "100%")


def test_a_single_column_called_message_is_the_body_itself(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    run(publish_query(sql="""SELECT '{"a": [1, null]}'::jsonb AS message UNION ALL SELECT NULL -- all"""))
    assert bodies(conn) == [{"a": [1, None]}, None]


def test_the_query_may_run_on_another_connection(
    conn_id: str, queue: Queue, run: Run, conn: Connection, empty_dsn: str, airflow_connection: Callable[..., str]
) -> None:
    queue("orders")
    airflow_connection(empty_dsn, "source", "postgres")
    run(publish_query(sql="SELECT current_database() AS message", sql_conn_id="source"))
    assert bodies(conn) == [empty_dsn.rsplit("/", 1)[1]]


FAILING: list[tuple[str, Any, str]] = [
    ("SELECT no_such", None, '^sql failed .*UndefinedColumn, SQLSTATE 42703.*column "no_such" does not exist'),
    ("SELECT 'SECRET'::integer", None, "^sql failed .*InvalidTextRepresentation, SQLSTATE 22P02"),
    ("SELECT %s::integer", ["SECRET"], "^sql failed .*InvalidTextRepresentation, SQLSTATE 22P02"),
    ("SELECT (1 / (3 - n))::text || 'SECRET' FROM generate_series(1, 3) AS n", None, "^sql failed .*SQLSTATE 22012"),
    ("SELECT 1; SELECT 'SECRET'", None, "^sql failed .*SyntaxError, SQLSTATE 42601"),
    ("SELECT 'open", None, "^sql failed .*SyntaxError, SQLSTATE 42601"),
    ("SELECT %s", None, "^sql failed .*SyntaxError, SQLSTATE 42601"),
    ("SELECT %(a)s", ["SECRET"], "^parameters do not match sql: .*named placeholders"),
    ("SELECT %(a)s", {"b": "SECRET"}, "^parameters do not match sql: .*parameter missing: a"),
    ("SELECT %s", ["SECRET", 2], "^parameters do not match sql: .*1 placeholder.*Give one parameter for each %s"),
    ("SELECT 5 % 2", ["SECRET"], "^parameters do not match sql: .*placeholder"),
]


def test_a_query_that_fails_is_named_with_its_sqlstate_and_quotes_no_row(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    for query, parameters, said in FAILING:
        with pytest.raises(InvalidArgument, match=said) as error:
            run(publish_query(sql=query, parameters=parameters, batch_size=1))
        assert "SECRET" not in "".join(traceback.format_exception(error.value, chain=True))
    assert bodies(conn) == []


def test_a_query_whose_connection_breaks_is_tried_again(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    with pytest.raises(ConnectionFailed):
        run(publish_query(sql="SELECT pg_terminate_backend(pg_backend_pid())"))


def test_a_publish_that_fails_in_the_middle_has_published_nothing(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    def broken() -> Iterator[Any]:
        yield from range(5)
        raise ZeroDivisionError

    queue("orders")
    with pytest.raises(ZeroDivisionError):
        run(publish(messages=broken, batch_size=2))
    assert bodies(conn) == []


def test_one_body_given_as_messages_is_not_taken_apart(conn_id: str, run: Run) -> None:
    with pytest.raises(InvalidArgument, match="messages is one dict"):
        run(publish(messages={"a": 1}))


def test_a_body_that_is_not_json_and_an_unknown_queue_are_refused(conn_id: str, queue: Queue, run: Run) -> None:
    with pytest.raises(QueueNotFound, match="orders"):
        run(publish(message=1))
    queue("orders")
    with pytest.raises(InvalidMessage, match="not JSON"):
        run(publish(messages=[{1, 2}]))


MOMENT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
TYPES = {
    "moment": MOMENT,
    "day": MOMENT.date(),
    "time": MOMENT.time(),
    "id": UUID(int=7),
    "price": Decimal("12345678901234567890.10"),
}
AS_TEXT = {
    "moment": "2013-01-01T05:15:00+00:00",
    "day": "2013-01-01",
    "time": "05:15:00",
    "id": "00000000-0000-0000-0000-000000000007",
    "price": "12345678901234567890.10",
}


def test_dates_and_exact_numbers_become_text_by_every_way(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    PgQueueHook(conn_id).publish(queue("orders"), TYPES)
    run(publish(message=TYPES, dedup_key=None))
    run(publish(messages=[TYPES], dedup_key=None))
    run(publish(messages=lambda: iter([TYPES]), dedup_key=None))
    assert bodies(conn) == [AS_TEXT] * 4
    with pytest.raises(InvalidMessage, match="NaN"):
        PgQueueHook(conn_id).publish("orders", Decimal("NaN"))
    with pytest.raises(InvalidArgument, match=r"message is a Decimal\. The value is not JSON: it has NaN"):
        publish(message=Decimal("NaN"), dedup_key=None)


def test_the_result_of_another_task_is_published_after_it_and_not_rendered(
    conn_id: str, queue: Queue, run: Run, context: Any, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import task
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    @task
    def upstream() -> list[Any]:
        return []

    queue("orders")
    with DAG("d", schedule=None):
        operator = PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=upstream())
    assert operator.upstream_task_ids == {"upstream"}
    # What Airflow reads from its database is a fake here; tests/e2e has the real one.
    monkeypatch.setattr(PlainXComArg, "resolve", lambda self, context: [{"a": "{{ 7*7 }}"}, MOMENT])
    operator.render_template_fields(context)
    assert run(operator)["published"] == 2
    assert bodies(conn) == [{"a": "{{ 7*7 }}"}, AS_TEXT["moment"]]


def test_a_mapped_task_that_does_not_wait_for_its_messages_says_so(conn_id: str, run: Run) -> None:
    from airflow.sdk import task

    @task
    def upstream() -> list[Any]:
        return []

    with DAG("d", schedule=None):
        mapped: Any = PgQueuePublishOperator.partial(
            task_id="publish", queue_name="orders", messages=upstream()
        ).expand(topic=["a", "b"])
    with pytest.raises(InvalidArgument, match="messages come from upstream, and this task does not wait"):
        run(mapped.unmap({"topic": "a"}))


def test_a_query_in_a_file_is_loaded_and_is_a_template(
    conn_id: str, queue: Queue, run: Run, context: Any, conn: Connection, tmp_path: Path
) -> None:
    queue("orders")
    (tmp_path / "rows.sql").write_text("SELECT n, '{{ ti.run_id }}' AS run FROM generate_series(1, 2) AS n;\n")
    with DAG("d", schedule=None, template_searchpath=str(tmp_path)) as dag:
        operator = publish_query(sql="rows.sql")
        publish_file_name = PgQueuePublishOperator(task_id="name", queue_name="orders", message={"file": "x.sql"})
    dag.resolve_template_files()
    for one in (operator, publish_file_name):
        one.render_template_fields(context)
        run(one)
    assert bodies(conn) == [{"n": 1, "run": "manual__1"}, {"n": 2, "run": "manual__1"}, {"file": "x.sql"}]


def test_a_query_in_a_file_of_a_mapped_task_is_loaded_when_it_begins(
    conn_id: str, queue: Queue, run: Run, context: Any, conn: Connection, tmp_path: Path
) -> None:
    queue("orders")
    (tmp_path / "rows.sql").write_text("SELECT '{{ ti.run_id }}' AS message")
    with DAG("d", schedule=None, template_searchpath=str(tmp_path)):
        operator = publish_query(sql="rows.sql")
    run(operator)
    assert bodies(conn) == ["manual__1"]


def test_a_query_in_a_file_that_is_not_there_is_an_error_of_the_dag(tmp_path: Path) -> None:
    with DAG("d", schedule=None, template_searchpath=str(tmp_path)) as dag:
        publish_query(sql="rows.sql")
    with pytest.raises(InvalidArgument, match=r"sql is 'rows\.sql', and there is no such file"):
        dag.resolve_template_files()


def test_bodies_pass_unchanged_and_unlogged(
    conn_id: str, queue: Queue, run: Run, context: Any, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    queue("orders")
    with DAG("d", schedule=None):
        operator = publish(messages=lambda: HOSTILE)
        quoted = PgQueuePublishOperator(task_id="quoted", queue_name="orders", message=literal("{{ 7*7 }}"))
    for one in (operator, quoted):
        one.render_template_fields(context)
        run(one)
    assert bodies(conn) == [*HOSTILE, "{{ 7*7 }}"]
    seen: list[Any] = []
    run(consume(apply_function=lambda message: seen.append(message.body)))
    assert seen == [*HOSTILE, "{{ 7*7 }}"]
    assert "7*7" not in caplog.text
    assert "__classname__" not in caplog.text


@pytest.mark.parametrize("mapped", [False, True])
def test_airflow_stores_and_shows_nothing_of_a_rendered_body(
    conn_id: str, queue: Queue, run: Run, context: Any, conn: Connection, mapped: bool
) -> None:
    from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

    queue("orders")
    with DAG("d", schedule=None) as dag:
        if mapped:
            task: Any = PgQueuePublishOperator.partial(task_id="publish", queue_name="orders").expand(
                message=[{"run": "{{ ti.run_id }}"}]
            )
        else:
            task = publish(message={"run": "{{ ti.run_id }}"})
    if mapped:
        context["ti"].map_index = 0
        context |= {"dag": dag, "dag_run": SimpleNamespace(conf={})}
    context["task"] = context["ti"].task = task
    task.render_template_fields(context)
    rendered = context["ti"].task
    stored = _serialize_rendered_fields(rendered)
    assert "manual__1" not in str(stored)
    assert stored["queue_name"] == "orders"
    run(rendered)
    assert bodies(conn) == [{"run": "manual__1"}]


def test_a_retried_publish_publishes_once_though_airflow_never_heard_of_the_first(
    conn_id: str, queue: Queue, run: Run, conn: Connection, context: dict[str, Any]
) -> None:
    queue("orders")
    first = run(publish(messages=[1, 2, 3], batch_size=2))
    context["ti"].try_number = 2
    again = run(publish(messages=[1, 2, 3], batch_size=2))
    assert (again["published"], again["duplicate_of"]) == (0, first["first_id"])
    assert bodies(conn) == [1, 2, 3]
    context["ti"].run_id = "another_run" + "x" * 300
    assert run(publish(messages=[4]))["published"] == 1


def clear(ti: Any) -> None:
    """Do to a task instance what Airflow does when somebody clears it."""
    ti.max_tries = ti.try_number + 1
    ti.try_number += 1


def test_a_cleared_publish_publishes_again_once(
    conn_id: str, queue: Queue, run: Run, conn: Connection, context: dict[str, Any]
) -> None:
    queue("orders")
    for _ in range(2):
        run(publish(messages=[1, 2]))
        clear(context["ti"])
    assert run(publish(messages=[1, 2]))["published"] == 2
    context["ti"].try_number += 1  # and retried, because Airflow did not hear of it
    assert run(publish(messages=[1, 2]))["published"] == 0
    assert sorted(bodies(conn)) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": [1, 2, 3]}, "3 messages, because.*dedup_key=None publishes"),
        ({"messages": lambda: iter([1, 2, 3]), "batch_size": 2}, "2 messages and all that follow, because"),
        ({"message": 1}, "1 message, because"),
        ({"message": 1, "dedup_key": "mine"}, "1 message, because.*Give another dedup_key"),
        ({"messages": [1, 2, 3], "one_transaction": False, "batch_size": 1}, "3 messages, because"),
    ],
)
def test_what_is_not_published_is_counted_in_a_warning(
    conn_id: str, queue: Queue, run: Run, capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    queue("orders")
    first = run(publish(**options))["first_id"]
    assert "not published" not in capsys.readouterr().out
    run(publish(**options))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "not published" in line]
    assert "[warning" in line
    assert re.search(f"not published: {said}", line)
    assert f"which began with message {first}," in line


def test_a_cleared_publish_in_batches_continues(
    conn_id: str, queue: Queue, run: Run, conn: Connection, context: dict[str, Any]
) -> None:
    queue("orders")
    run(publish(messages=range(4), batch_size=2, one_transaction=False))
    clear(context["ti"])
    assert run(publish(messages=range(5), batch_size=2, one_transaction=False))["published"] == 1
    assert bodies(conn) == [0, 1, 2, 3, 4]


def test_a_retried_publish_in_batches_goes_on_where_the_first_try_ended(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise OSError("the source broke")

    queue("orders")
    with pytest.raises(OSError, match="the source broke"):
        run(publish(messages=broken, batch_size=2, one_transaction=False))
    assert bodies(conn) == [0, 1, 2, 3]
    assert run(publish(messages=range(7), batch_size=2, one_transaction=False))["published"] == 3
    assert bodies(conn) == [0, 1, 2, 3, 4, 5, 6]


def test_a_key_of_ones_own_or_none_replaces_that_of_the_task(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    for body in (1, 2):
        run(publish(message=body, dedup_key=None))
        run(publish(message=body * 10, dedup_key="order 7", on_conflict="replace"))
    assert sorted(bodies(conn)) == [1, 2, 20]


def test_what_is_said_about_a_message_reaches_it(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    moment = datetime.now(UTC) + timedelta(hours=1)
    said = {"topic": "shop.order", "group_key": "7", "reference": "r", "headers": {"k": 1}, "priority": 5}
    summary = run(publish(message=1, origin=False, visible_at=moment, **said))
    assert (summary["published"], summary["ids"]) == (1, [summary["first_id"]])
    row = conn.execute("SELECT topic, group_key, reference, headers, priority, due_at FROM messages.message").fetchone()
    assert row is not None
    assert row[:5] == tuple(said.values())
    assert row[5] >= moment


def judge(message: Message) -> Outcome | None:
    match message.body:
        case "bad":
            raise RejectMessage("it is bad")
        case "broken":
            return Failed("it is broken")
        case "later":
            return Retry(timedelta(hours=1))
        case "crash":
            raise ZeroDivisionError
    return None


def test_each_message_ends_as_the_function_says(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders"), ["good", "bad", "broken", "later", "crash", "good too"])
    counts = run(consume(apply_function=judge, batch_size=2, fail_on_failed=None))
    assert counts == {"success": 2, "rejected": 1, "failed": 1, "retried": 2}
    assert results(conn) == {"good": "success", "good too": "success", "bad": "rejected", "broken": "failed"}
    row = conn.execute("SELECT DISTINCT handled_by FROM messages.message_archive").fetchone()
    assert row is not None
    assert row[0].startswith(f"orders/manual__1/consume/-1/1@{os.getpid()}@")


def test_max_messages_is_a_limit_and_the_rest_stays(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    PgQueueHook(conn_id).publish_batch(queue("orders"), list(range(10)))
    assert run(consume(apply_function=lambda message: None, max_messages=7, batch_size=3)) == {"success": 7}
    assert bodies(conn) == [7, 8, 9]


def test_a_paused_queue_is_said_so(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders", paused=True)
    with pytest.raises(QueuePaused, match="orders"):
        run(consume(apply_function=judge))


def test_an_empty_queue_is_done_or_waited_for_as_wanted(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    assert run(consume(apply_function=judge)) == {}
    waiting = consume(apply_function=judge, wait_for_messages=True, wait_timeout=timedelta(minutes=5))
    with pytest.raises(TaskDeferred) as deferred:
        run(waiting)
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout == timedelta(minutes=5)
    assert deferred.value.trigger.serialize()[1]["end_task"] is False
    PgQueueHook(conn_id).publish("orders", 1)
    assert run(waiting, "execute_complete", event={"ready": 1}) == {"success": 1}
    with pytest.raises(TaskDeferred):
        run(waiting, "execute_complete", event={"ready": 1})


def test_a_consumer_that_waits_is_not_notified_for_what_it_cannot_lease(conn_id: str, queue: Queue, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders", max_leased=1), [1, 2])
    hook.run(verbs.lease("orders"))
    waiting = consume(apply_function=judge, wait_for_messages=True)
    with pytest.raises(TaskDeferred) as deferred:
        run(waiting)
    watch = deferred.value.trigger.watch()
    assert watch.receive(hook.run(watch.ask([watch])), 0.0) is None


def test_a_consumer_that_was_notified_nothing_waits_longer_each_time(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    waiting = consume(apply_function=judge, wait_for_messages=True, poll_interval=30)
    pauses: list[float] = []
    method: str = "execute"
    arguments: dict[str, Any] = {}
    for _ in range(4):
        with pytest.raises(TaskDeferred) as deferred:
            run(waiting, method, **arguments)
        pauses.append(deferred.value.trigger.serialize()[1]["notify_after"])
        method, arguments = deferred.value.method_name, {"event": {"ready": 1}, **(deferred.value.kwargs or {})}
    assert pauses == [8, 16, 30, 30]


def test_a_retry_of_every_task_comes_soon_and_each_further_one_later() -> None:
    from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
    from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor

    with DAG("d", schedule=None):
        tasks = [
            consume(apply_function=judge),
            publish(message=1),
            repair(),
            PgQueueMaintenanceOperator(task_id="maintenance"),
        ]
        tasks += [
            PgQueueMessageSensor(task_id="wait", queue_name="orders"),
            PgQueueOutcomeSensor(task_id="hear", ids=1),
        ]
        mapped: Any = PgQueueConsumeOperator.partial(task_id="many", apply_function=judge).expand(queue_name=["a"])
    assert [one.retries for one in tasks] == [1, 0, 0, 0, 1, 1]
    for one in tasks:
        assert (one.retry_delay, one.max_retry_delay) == (timedelta(seconds=5), timedelta(minutes=5))
        assert one.retry_exponential_backoff == DOUBLED
    # Before 3.3 Airflow gives mapped tasks its own defaults, whatever those of the class are.
    ours = AIRFLOW >= (3, 3)
    assert mapped.partial_kwargs["retry_delay"] == timedelta(seconds=5 if ours else 300)
    assert mapped.partial_kwargs["retries"] == (1 if ours else 0)


@pytest.mark.parametrize(("limit", "batch"), [(None, False), (timedelta(minutes=1), True)])
def test_an_async_function_is_awaited_in_one_loop(
    conn_id: str, queue: Queue, run: Run, limit: timedelta | None, batch: bool
) -> None:
    loops = []

    async def handle(given: Any, sku: str) -> Any:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return {given[0].id: Rejected(sku)} if batch else Rejected(sku)

    PgQueueHook(conn_id).publish_batch(queue("orders"), [1, 2])
    name = "apply_function_batch" if batch else "apply_function"
    options: dict[str, Any] = {name: handle, "handler_timeout": limit, "op_args": ["a"], "batch_size": 1}
    assert run(consume(**options)) == {"rejected": 2}
    assert len(set(map(id, loops))) == 1


def test_a_consumer_is_retried_as_the_author_says() -> None:
    assert consume(apply_function=judge, retry_delay=timedelta(hours=1)).retry_delay == timedelta(hours=1)
    with DAG("slow", schedule=None, default_args={"retry_delay": timedelta(hours=2)}):
        assert consume(apply_function=judge).retry_delay == timedelta(hours=2)
    assert consume(apply_function=judge, retries=0).retries == 0
    with DAG("d", schedule=None, default_args={"retries": 7}):
        assert consume(apply_function=judge).retries == 7


# Requeue --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(conn_id: str, queue: Queue, run: Run) -> None:
    """One rejected and two failed messages in queue orders."""
    PgQueueHook(conn_id).publish_batch(queue("orders"), ["bad", "broken", "broken"])
    run(consume(apply_function=judge, fail_on_failed=None))


@pytest.mark.usefixtures("dead")
def test_failed_messages_are_requeued_and_rejected_ones_are_not(run: Run, conn: Connection) -> None:
    summary = run(PgQueueRequeueOperator(task_id="again", queue_name="orders"))
    assert summary["requeued"] == len(summary["ids"]["requeued"]) == 2
    assert bodies(conn) == ["broken", "broken"]
    row = conn.execute(
        "SELECT DISTINCT resolved_by FROM messages.message_archive WHERE resolution = 'requeued'"
    ).fetchone()
    assert row == ("repair orders/manual__1/again/-1",)


@pytest.mark.usefixtures("dead")
def test_results_and_a_limit_choose_what_is_requeued(run: Run, conn: Connection) -> None:
    assert run(PgQueueRequeueOperator(task_id="r", queue_name="orders", results=["rejected"]))["requeued"] == 1
    assert run(PgQueueRequeueOperator(task_id="f", queue_name="orders", max_messages=1))["requeued"] == 1
    assert bodies(conn) == ["bad", "broken"]


@pytest.mark.usefixtures("dead")
def test_a_cause_of_the_sensor_and_ids_choose_what_is_requeued_whatever_the_result(
    run: Run, conn: Connection, context: Any
) -> None:
    seen = run(PgQueueDeadMessageSensor(task_id="wait", queue_name="orders"))
    causes = {cause["result"]: cause for cause in seen}
    failed = [id_ for (id_,) in conn.execute("SELECT id FROM messages.message_archive WHERE result = 'failed'")]
    by_cause = PgQueueRequeueOperator(task_id="c", queue_name="orders", cause=causes["rejected"]["fingerprint"])
    assert run(by_cause)["ids"] == {"requeued": [causes["rejected"]["newest_id"]]}
    with DAG("d", schedule=None):
        by_ids = PgQueueRequeueOperator(
            task_id="i", queue_name=None, ids="{{ dag_run.conf['ids'] }}", since="{{ begin }}"
        )
    conf = {"ids": failed}
    by_ids.render_template_fields(context | {"dag_run": SimpleNamespace(conf=conf), "begin": "2026-01-01T00:00:00Z"})
    assert run(by_ids)["ids"] == {"requeued": sorted(failed)}
    assert bodies(conn) == ["bad", "broken", "broken"]


@pytest.mark.usefixtures("dead")
def test_a_requeue_that_reaches_its_limit_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(PgQueueRequeueOperator(task_id="again", queue_name="orders", max_messages=3))
    assert "stopped at max_messages" not in capsys.readouterr().out
    run(PgQueueRequeueOperator(task_id="more", queue_name="orders", results=["rejected"], max_messages=1))
    assert "[warning  ] stopped at max_messages, 1: more dead messages of orders may be left" in capsys.readouterr().out


# Repair ---------------------------------------------------------------------------------------------------------------


def mend(message: DeadMessage) -> Any:
    return Dismiss("no use") if message.result == "rejected" else "mended"


def repair(**arguments: Any) -> PgQueueRequeueOperator:
    return PgQueueRequeueOperator(**({"task_id": "repair", "queue_name": "orders", "function": mend} | arguments))


@pytest.mark.usefixtures("dead")
def test_a_function_repairs_dead_messages_and_the_result_has_no_bodies(run: Run, conn: Connection) -> None:
    dry = run(repair(dry_run=True))
    assert (dry["requeued"], dry["dismissed"], dry["dry_run"], bodies(conn)) == (2, 1, True, [])
    summary = run(repair())
    assert (summary["requeued"], summary["dismissed"], bodies(conn)) == (2, 1, ["mended", "mended"])
    assert "mended" not in repr(summary)
    assert "broken" not in repr(summary)
    row = conn.execute(
        "SELECT DISTINCT resolved_by FROM messages.message_archive WHERE resolution IS NOT NULL"
    ).fetchall()
    assert row == [("repair orders/manual__1/repair/-1",)]


@pytest.mark.usefixtures("dead")
def test_a_repair_whose_function_raised_fails_if_that_is_wanted_and_is_not_retried(run: Run, conn: Connection) -> None:
    with pytest.raises(AirflowFailException, match=r"stay dead: \{'raised': 2\}"):
        run(repair(function="operator:attrgetter", results=["failed"], fail_on=["invalid", "raised"]))
    assert run(repair(results=["rejected"], fail_on=["raised"]))["dismissed"] == 1


@pytest.mark.usefixtures("dead")
def test_a_canary_that_stops_a_repair_fails_it_or_is_in_its_result(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = {"canary_wait": timedelta(milliseconds=10), "max_per_second": 100.0}
    canary: dict[str, Any] = {"results": ["failed"], "canary": 1, **waits}
    with pytest.raises(AirflowFailException, match="'stopped': 'the canary was not finished in time'"):
        run(repair(**canary))
    summary = run(repair(**canary, fail_on=[]))
    assert (summary["requeued"], summary["stopped"]) == (1, "the canary was not finished in time")
    assert "[warning  ] Dead messages of orders stay dead: {'stopped':" in capsys.readouterr().out


@pytest.mark.usefixtures("dead")
def test_a_repair_says_how_many_stay_dead_and_why(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ids = run(repair(function=lambda message: LEAVE if message.result == "rejected" else None))["ids"]
    out = capsys.readouterr().out
    assert "Dead messages of orders stay dead: {'left': 1, 'raised': 2}" in out
    assert "dead messages of orders: left 1 ({}), raised 2 ({}, {}) [".format(*ids["left"], *ids["raised"]) in out
    run(repair(dry_run=True, results=["rejected"]))
    assert f"dead messages of orders: dry run, dismissed 1 ({ids['left'][0]}) [" in capsys.readouterr().out
    run(repair(results=["expired"]))
    assert "dead messages of orders: none " in capsys.readouterr().out


@pytest.mark.usefixtures("dead")
def test_a_repair_that_is_told_to_stop_settles_what_it_has_and_its_retry_goes_on(run: Run, conn: Connection) -> None:
    def stop(message: DeadMessage) -> Any:
        operator.on_kill()
        return KEEP

    operator = repair(function=stop)
    with pytest.raises(AirflowException, match="stopped while repairing"):
        run(operator)
    assert len(bodies(conn)) == 1
    assert run(repair(function=lambda message: KEEP))["requeued"] == 3
    assert sorted(bodies(conn)) == ["bad", "broken", "broken"]


def test_the_operators_can_be_put_into_a_dag_and_serialized(conn_id: str) -> None:
    with DAG("d", schedule=None) as dag:
        PgQueueSetupOperator(task_id="setup", queues=["orders"])
        publish(messages=lambda: [1])
        consume(apply_function=judge)
        PgQueueRequeueOperator(task_id="again", queue_name=None, ids=[1])
        repair()
        PgQueueMaintenanceOperator(task_id="maintenance")
        PgQueueConsumeOperator.partial(task_id="many", apply_function=judge).expand(queue_name=["a", "b"])
    assert len(DagSerialization.to_dict(dag)["dag"]["tasks"]) == 7


def test_a_consumer_leases_as_the_queue_says(conn_id: str, conn: Connection, queue: Queue, run: Run) -> None:
    hook = PgQueueHook(conn_id)
    queue("orders", lease_for="2 minutes")
    seen: list[Any] = []
    lengths = "SELECT lock_expires_at - leased_at FROM messages.message WHERE lock_expires_at IS NOT NULL"
    hook.publish("orders", 1)
    with hook.lease("orders"):
        seen += conn.execute(lengths).fetchall()
    hook.publish("orders", 1)
    run(consume(apply_function=lambda message: seen.extend(conn.execute(lengths).fetchall())))
    assert seen == [(timedelta(minutes=2),)] * 2


def test_a_broken_function_fails_its_task_and_a_hanging_one_loses_its_message(
    conn_id: str, conn: Connection, queue: Queue, run: Run
) -> None:
    queue("orders")
    for number in range(5):
        PgQueueHook(conn_id).publish("orders", number)
    with pytest.raises(HandlerBroken, match="on 3 messages"):
        run(consume(apply_function=lambda message: 1 / 0, give_up_after=3))
    assert conn.execute("SELECT sum(attempts), max(lock_token::text) FROM messages.message").fetchall() == [(3, None)]
    ended = threading.Event()
    operator = consume(
        apply_function=lambda message: ended.wait(60) and None if message.body == 4 else None,
        handler_timeout=timedelta(milliseconds=500),
    )
    try:
        assert run(operator)["timed_out"] == 1
    finally:
        ended.set()
