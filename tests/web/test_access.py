"""Who may do what, through the API server of Airflow with its own login."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.web.airflow_server import ROLES, make_server, token_of
from tools.screenshots.served import served

Client = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{role}-ann:{role}" for role in ROLES))
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
        patch.setenv("AIRFLOW__API__SECRET_KEY", "a secret of the tests " * 4)
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "another secret of the tests, which signs the logins " * 2)
        with served(make_server()) as address:
            yield address


@pytest.fixture
def client(address: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client for a role, or for nobody: `client("viewer")`. The page shows the database of the test."""
    known = conninfo_to_dict(dsn)
    fields = {"conn_type": "pgqueue", "host": known["host"], "port": int(known["port"]), "login": known["user"]}
    monkeypatch.setenv("AIRFLOW_CONN_PGQUEUE_DEFAULT", json.dumps(fields | {"schema": known["dbname"]}))
    opened: list[httpx.Client] = []

    def open_one(role: str | None) -> httpx.Client:
        cookies = {"_token": token_of(role)} if role else {}
        opened.append(httpx.Client(base_url=f"{address}/pgqueue", cookies=cookies, trust_env=False, timeout=30))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_the_page_is_in_the_navigation(client: Client) -> None:
    from airflow import plugins_manager

    views, _ = plugins_manager._get_ui_plugins()
    (ours,) = [view for view in views if view["url_route"] == "queues"]
    assert (ours["destination"], ours["href"]) == ("nav", "/pgqueue/")
    assert client("viewer").get("/static/queues.svg").status_code == 200


def test_nobody_is_sent_to_the_login(client: Client) -> None:
    page = client(None).get("/")
    assert page.status_code == 401
    assert "/auth/login?next=" in page.text


@pytest.mark.parametrize("role", ROLES)
def test_everybody_who_is_logged_in_sees_the_queues(client: Client, role: str, queue: Any) -> None:
    queue("orders")
    page = client(role).get("/")
    assert page.status_code == 200
    assert "orders" in page.text
