"""@task.pgqueue: a function of a message is a task; models reject what does not match."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG, task
from pydantic import BaseModel, ConfigDict

from airflow_provider_pgqueue.core import InvalidArgument, Message, Rejected, verbs
from airflow_provider_pgqueue.core import run as run_verb
from airflow_provider_pgqueue.decorators.pgqueue import pgqueue_task, publish_task
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from tests.test_docs import of_page
from tests.waiting import until_past
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


class Order(BaseModel):
    """What the messages are meant to hold."""

    model_config = ConfigDict(extra="forbid")
    order_id: int
    prices: dict[str, int] = {}


def details(conn: Connection) -> list[tuple[str, str | None]]:
    return conn.execute("SELECT result, details FROM messages.message_archive ORDER BY id").fetchall()


def test_a_function_of_a_message_is_a_task(conn_id: str, conn: Connection, queue: Queue, run: Run) -> None:
    run_verb(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    seen = []
    with DAG("orders", schedule=None):

        @pgqueue_task(queue_name="orders", batch_size=2)
        def pack(message: Message, shop: str, *, fast: bool) -> Rejected | None:
            """Pack what is not 2."""
            seen.append((message.body, shop, fast))
            return Rejected("no twos") if message.body == 2 else None

        operator = pack("north", fast=True).operator
    assert run(operator) == {"success": 2, "rejected": 1}
    assert seen == [(1, "north", True), (2, "north", True), (3, "north", True)]
    assert (operator.task_id, operator.batch_size) == ("pack", 2)


def test_the_function_gets_of_the_context_what_it_asks_for(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    run_verb(conn, verbs.publish(queue("orders"), 1))
    seen = []
    with DAG("orders", schedule=None):

        @pgqueue_task(queue_name="orders")
        def pack(message: Message, shop: str, ti: Any = None, *, dag: str = "", **context: Any) -> None:
            seen.append((shop, ti.task_id, dag, "ti" in context, "task_instance" in context))

        operator = pack("north", dag="mine").operator

        @pgqueue_task(queue_name="orders")
        def pack_alone(message: Message, ti: Any = None) -> None:
            seen.append(ti.task_id)

        alone = pack_alone().operator
    assert run(operator) == {"success": 1}
    run_verb(conn, verbs.publish("orders", 1))
    assert run(alone) == {"success": 1}
    assert seen == [("north", seen[0][1], "mine", False, True), seen[1]]
    assert seen[0][1]
    assert seen[1]


def test_a_function_that_publishes_gets_of_the_context_what_it_asks_for(
    conn_id: str, queue: Queue, conn: Connection, run: Run
) -> None:
    queue("orders")
    with DAG("orders", schedule=None):

        @publish_task(queue_name="orders")
        def fill(ti: Any = None, **context: Any) -> list[Any]:
            return [ti.task_id, "task_instance" in context]

        operator = fill().operator
    assert run(operator)["published"] == 2
    bodies = [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]
    assert bodies[0]
    assert bodies[1] is True


def test_results_of_other_tasks_and_templates_are_arguments(
    conn_id: str, conn: Connection, queue: Queue, run: Run, context: dict[str, Any]
) -> None:
    run_verb(conn, verbs.publish(queue("orders"), 1))
    with DAG("orders", schedule=None):

        @task
        def shop() -> str:
            return "north"

        @pgqueue_task(queue_name="orders")
        def pack(message: Message, shop: str, day: str) -> None:
            seen.append((shop, day))

        seen: list[tuple[str, str]] = []
        operator = pack(shop(), "{{ day }}").operator
    assert operator.upstream_task_ids == {"shop"}
    operator.op_args = ("north", operator.op_args[1])
    operator.render_template_fields(context | {"day": "Monday"})
    run(operator)
    assert seen == [("north", "Monday")]


def test_with_batches_it_gets_lists(conn_id: str, conn: Connection, queue: Queue, run: Run) -> None:
    run_verb(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    with DAG("orders", schedule=None):

        @pgqueue_task(queue_name="orders", batches=True)
        def pack(messages: list[Message]) -> list[Rejected | None]:
            return [Rejected("no twos") if message.body == 2 else None for message in messages]

        operator = pack().operator
    assert run(operator) == {"success": 2, "rejected": 1}


@pytest.mark.parametrize("arguments", [(1, 2), ()], ids=["too many", "too few"])
def test_a_call_that_cannot_be_is_an_error_of_the_dag(arguments: tuple[int, ...]) -> None:
    @pgqueue_task(queue_name="orders")
    def pack(message: Message, shop: int) -> None:
        """Never called."""

    with DAG("orders", schedule=None), pytest.raises(InvalidArgument, match="pack cannot be called"):
        pack(*arguments)


@pytest.mark.parametrize("batches", [False, True])
def test_a_body_that_does_not_match_the_model_is_rejected_without_being_quoted(
    conn_id: str, conn: Connection, queue: Queue, run: Run, batches: bool
) -> None:
    bodies = [{"order_id": 7}, {"order_id": "SECRET"}, {"order_id": 8, "SECRET": 1}, "SECRET", None]
    bodies.append({"order_id": 9, "prices": {"SECRET": "much"}})
    run_verb(conn, verbs.publish_batch(queue("orders"), bodies))
    seen: list[Any] = []

    def each(message: Message) -> None:
        seen.append(message.body)

    def every(messages: list[Message]) -> None:
        seen.extend(message.body for message in messages)

    function: dict[str, Any] = {"apply_function_batch": every} if batches else {"apply_function": each}
    operator = PgQueueConsumeOperator(task_id="pack", queue_name="orders", model=Order, **function)
    assert run(operator) == {"success": 1, "rejected": 5}
    assert seen == [Order(order_id=7)]
    told = [why for result, why in details(conn) if result == "rejected"]
    assert told == [
        "the body is not a valid Order: order_id: int_parsing",
        "the body is not a valid Order: the body: extra_forbidden",
        "the body is not a valid Order: the body: model_type",
        "the body is not a valid Order: the body: model_type",
        "the body is not a valid Order: prices: int_parsing",
    ]


def test_a_batch_in_which_nothing_matches_does_not_reach_the_function(
    conn_id: str, conn: Connection, queue: Queue, run: Run
) -> None:
    run_verb(conn, verbs.publish(queue("orders"), "SECRET"))
    operator = PgQueueConsumeOperator(
        task_id="pack", queue_name="orders", model=f"{__name__}:Order", apply_function_batch="builtins:exit"
    )
    assert run(operator) == {"rejected": 1}


def test_a_json_schema_leaves_the_body_as_it_is(
    conn_id: str, conn: Connection, queue: Queue, run: Run, tmp_path: Path
) -> None:
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps({"type": "object", "required": ["order_id"]}))
    run_verb(conn, verbs.publish_batch(queue("orders"), [{"order_id": 7}, {"SECRET": 1}]))
    seen: list[Any] = []
    operator = PgQueueConsumeOperator(
        task_id="pack",
        queue_name="orders",
        model=str(schema),
        apply_function=lambda message: seen.append(message.body),
    )
    assert run(operator) == {"success": 1, "rejected": 1}
    assert seen == [{"order_id": 7}]
    assert details(conn)[1] == ("rejected", "it does not match the schema")


def test_the_example_handles_what_small_tenants_have_next_to_a_large_one(
    conn_id: str, conn: Connection, run: Run
) -> None:
    example = runpy.run_path(str(ROOT / "dags_examples" / "pgqueue_fair_share.py"))["dag"]
    create, publish, handle = (example.get_task(name) for name in ("create_queue", "publish", "handle"))
    run(create)
    run(create)
    run(publish)
    ((last,),) = conn.execute("SELECT max(visible_at) FROM messages.message").fetchall()
    until_past(conn, last)
    assert run(handle) == {"success": 60}
    handled = conn.execute(
        "SELECT topic, count(*) FROM messages.message_archive GROUP BY topic ORDER BY topic"
    ).fetchall()
    assert handled == [("large.report", 30), ("medium.report", 20), ("small.report", 10)]


def test_the_large_body_of_the_page_about_publishing_is_read_from_its_file(
    conn_id: str,
    conn: Connection,
    queue: Queue,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue("reports", backoff_first="1 hour", backoff_max="1 hour")
    (code,) = of_page("docs/how-to/publish.md", "python", "large body")
    page: dict[str, Any] = {}
    code = code.replace("s3://aws_default@bucket/reports", f"file://{tmp_path}")
    exec(compile(code, "publish.md", "exec"), page)
    for task_id in ("write", "count"):
        run(page["dag"].get_task(task_id))
    assert len(list(tmp_path.iterdir())) == 1
    assert "100000\n" in capsys.readouterr().out
    assert details(conn) == [("success", None)]
