"""Where a message comes from: reference and headers, from the task that publishes to the handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG, task
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from airflow_provider_pgqueue.core import Consumer, Message
from airflow_provider_pgqueue.decorators.pgqueue import publish_task
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]
TASK = {"dag_id": "orders", "run_id": "manual__1", "task_id": "publish", "map_index": -1, "try_number": 1}


@pytest.fixture
def tracer() -> trace.Tracer:
    return TracerProvider().get_tracer("test")


def test_a_handler_learns_who_published_and_continues_the_trace(
    conn_id: str, queue: Queue, run: Run, tracer: trace.Tracer
) -> None:
    queue("orders")
    with tracer.start_as_current_span("publisher") as published:
        run(PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1, headers={"shop": "north"}))
    seen: list[tuple[Any, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.headers, get_current_span().get_span_context().trace_id))

    with tracer.start_as_current_span("consumer") as consumer:
        run(PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=handle))
    ((headers, trace_id),) = seen
    assert trace_id == published.get_span_context().trace_id != consumer.get_span_context().trace_id
    assert headers.pop("traceparent").split("-")[1] == f"{trace_id:032x}"
    assert headers == {"airflow": TASK, "shop": "north"}


def test_a_consumer_without_airflow_gets_the_headers(conn_id: str, queue: Queue, run: Run, conn: Connection) -> None:
    queue("orders")
    run(PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1))
    seen: list[Any] = []
    Consumer(queue_name="orders", handle=lambda message: seen.append((message.headers, message.reference))).drain(conn)
    assert seen == [({"airflow": TASK}, "orders/manual__1/publish/-1")]


def test_headers_that_name_no_trace_do_not_hurt_the_handler(
    conn_id: str, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("orders")
    given: list[Any] = [None, {"traceparent": 5}, {"traceparent": "no such trace"}, {"tracestate": "\n"}]
    for headers in given:
        options = {"headers": headers, "origin": False, "dedup_key": None}
        run(PgQueuePublishOperator(task_id="publish", queue_name="orders", message=1, **options))
    assert [headers for (headers,) in conn.execute("SELECT headers FROM messages.message ORDER BY id")] == given
    counts = run(PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=lambda message: None))
    assert counts == {"success": 4}


@pytest.mark.parametrize(
    ("returned", "bodies"),
    [
        ([1, 2], [1, 2]),
        pytest.param(iter((1, 2)), [1, 2], id="iterator"),
        ({"a": 1}, [{"a": 1}]),
        ("text", ["text"]),
        (None, []),
    ],
    ids=str,
)
def test_what_a_function_returns_is_published(
    conn_id: str, queue: Queue, run: Run, conn: Connection, returned: Any, bodies: list[Any]
) -> None:
    queue("orders")
    with DAG("orders", schedule=None):

        @publish_task(queue_name="orders", topic="a.b")
        def order(number: int, *, shop: str) -> Any:
            """Return what the test says."""
            assert (number, shop) == (7, "north")
            return returned

        operator = order(7, shop="north").operator
    assert run(operator)["published"] == len(bodies)
    assert conn.execute("SELECT message, topic FROM messages.message ORDER BY id").fetchall() == [
        (body, "a.b") for body in bodies
    ]


def test_airflow_finds_the_decorator_that_hangs_on_the_other() -> None:
    with DAG("orders", schedule=None):

        @task.pgqueue.publish(queue_name="orders")
        def order() -> Iterator[int]:
            """Publish three."""
            yield from range(3)

        assert order().operator.custom_operator_name == "@task.pgqueue.publish"
