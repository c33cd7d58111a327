"""The link of a task to what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.plugins import page

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
    assert link(PgQueueMaintenanceOperator(task_id="maintenance")) == ""


@pytest.mark.parametrize(("base_url", "root"), [("https://airflow.example/team/", "/team"), ("", "")])
def test_the_login_is_below_the_path_of_airflow_and_leads_back(
    base_url: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    known = page.login_address(f"{root}/pgqueue/queues/orders?span=week")
    assert known == f"{root}/api/v2/auth/login?next={quote(root, safe='')}%2Fpgqueue%2Fqueues%2Forders%3Fspan%3Dweek"
