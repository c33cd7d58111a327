"""The link of a task to what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgqueue.links import PgQueueLink
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.operators.upkeep import PgQueueUpkeepOperator

Queue = Callable[..., str]
Run = Callable[..., Any]


def link(operator: Any) -> str:
    """Ask as the task runner does when a task ends."""
    (found,) = operator.operator_extra_links
    assert found.xcom_key == "_link_PgQueueLink"
    return str(found.get_link(operator=operator, ti_key=None))


def test_a_task_links_to_its_message_or_to_its_queue(
    conn_id: str, queue: Queue, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    queue("orders")
    one = PgQueuePublishOperator(task_id="one", queue_name="orders", message=1)
    id_ = run(one)["first_id"]
    assert link(one) == f"https://airflow.example/team/pgqueue/messages/{id_}"
    # A further try found the message of the first.
    again = PgQueuePublishOperator(task_id="one", queue_name="orders", message=1)
    run(again)
    assert link(again) == link(one)
    many = PgQueuePublishOperator(task_id="many", queue_name="orders", messages=[1, 2])
    run(many)
    assert link(many) == "https://airflow.example/team/pgqueue/queues/orders"
    consume = PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=print)
    assert link(consume) == "https://airflow.example/team/pgqueue/queues/orders"
    assert link(PgQueueUpkeepOperator(task_id="upkeep")) == ""


def test_the_link_is_a_class_that_airflow_may_load() -> None:
    assert PgQueueLink().name == "Messages"
