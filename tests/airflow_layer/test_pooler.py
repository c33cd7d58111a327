"""Airflow through PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import ConnectionFailed, connect
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.triggers.hub import HubTimes, notification_stream
from airflow_provider_pgqueue.triggers.watch import MessageWatch, Notification

Connection = psycopg.Connection[Any]
Define = Callable[..., str]
Queue = Callable[..., str]

pytestmark = pytest.mark.pooler


@pytest.fixture
def pooled_id(pooled_dsn: str, airflow_connection: Define) -> str:
    """The id of an Airflow connection that leads through PgBouncer."""
    return airflow_connection(pooled_dsn)


def test_hooks_publish_and_operators_consume(
    pooled_id: str, queue: Queue, conn: Connection, run: Callable[..., Any]
) -> None:
    queue("orders")

    def publish(number: int) -> None:
        hook = PgQueueHook(pooled_id)
        with hook.connect() as own:
            for turn in range(20):
                hook.publish("orders", [number, turn], conn=own)
                hook.get_first("SELECT %s::int", parameters=[turn])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(publish, range(6)))
    operator = PgQueueConsumeOperator(
        task_id="consume", queue_name="orders", apply_function=lambda message: None, batch_size=5
    )
    assert run(operator) == {"success": 120}


def test_waiting_sensors_share_a_listener_that_looks_many_times(
    pooled_id: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    names = [queue(f"orders_{number}") for number in range(3)]
    PgQueueHook(pooled_id).publish(queue("full"), 1)

    async def first(name: str) -> Notification:
        async with aclosing(
            notification_stream(pooled_id, MessageWatch(queue_name=name), HubTimes(min_gap=0.0))
        ) as notifications:
            return await anext(notifications)

    async def disturbed() -> None:
        waiting = [asyncio.create_task(first(name)) for name in names]
        async with await PgQueueHook(pooled_id).aconnect() as other:
            for _ in range(20):
                await first("full")
                # The other client takes the session that was used last, so that the next poll gets another one.
                async with other.transaction():
                    await other.execute("SELECT")
                    await first("full")
        for name in names:
            PgQueueHook(pooled_id).publish(name, 1)
        await first("full")
        assert [notification["ready"] for notification in await asyncio.gather(*waiting)] == [1, 1, 1]

    asyncio.run(asyncio.wait_for(disturbed(), 60))
    assert "lost the connection" not in caplog.text
    assert caplog.text.count("connection pooler") == 1


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("none", None), ("7", 7), (7, 7)])
def test_the_extra_says_whether_statements_are_prepared(
    dsn: str, airflow_connection: Define, given: Any, expected: int | None
) -> None:
    hook = PgQueueHook(airflow_connection(dsn, extra={"prepare_threshold": given}))
    with hook.connect() as conn:
        assert conn.prepare_threshold == expected
    with connect(hook.conninfo()) as conn:
        assert conn.prepare_threshold == expected


def test_a_parameter_that_the_pooler_refuses_is_named(pooled_dsn: str, airflow_connection: Define) -> None:
    hook = PgQueueHook(airflow_connection(pooled_dsn, extra={"options": "-c work_mem=8MB"}))
    with pytest.raises(ConnectionFailed, match=r"options.*ALTER ROLE.* silently drop"):
        hook.connect()
