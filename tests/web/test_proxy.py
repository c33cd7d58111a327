"""The page behind a proxy that serves it below a path."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import httpx
import pytest

from airflow_provider_pgqueue.cli.program import program
from tests.airflow_layer.conftest import as_json
from tests.conftest import Connection
from tests.web.airflow_server import environment
from tests.web.conftest import hidden, serving
from tests.web.proxy import proxied
from tools.ports import free_port

_ADDRESS = re.compile(r'\s(?:href|src|action|hx-get)="([^"#?][^"]*)"')


@pytest.fixture
def orders(conn: Connection, queue: Callable[..., str]) -> None:
    """A queue with a message."""
    conn.execute("SELECT messages.publish(%s, '{}')", [queue("orders")])


def walk(client: httpx.Client, home: str) -> dict[str, int]:
    """Follow an address on the page to each path that leads to the page, and return the statuses by path."""
    found: dict[str, int] = {}
    left = [home]
    while left:
        address = left.pop()
        if (path := address.partition("?")[0]) not in found:
            answer = client.get(address)
            found[path] = answer.status_code
            ours = [html.unescape(one) for one in _ADDRESS.findall(answer.text) if "<html" in answer.text]
            left += [str(answer.url.join(one)) for one in ours if not one.endswith("/api/v2/auth/login")]
    return found


def works(client: httpx.Client, home: str, origin: str, action: str) -> None:
    """Walk over all of the page, and do something as a browser does over plain HTTP, where it tells the origin only."""
    statuses = walk(client, home)
    assert {f"{home}queues/orders", f"{home}queues/orders/{action}"} <= statuses.keys()
    assert any(address.startswith(f"{home}static/page.css") for address in statuses)
    assert {address: status for address, status in statuses.items() if status != 200} == {}
    form = hidden(client.get(f"{home}queues/orders/{action}").text)
    done = client.post(f"{home}queues/orders/{action}", data=form, headers={"Origin": origin}, follow_redirects=True)
    assert (done.status_code, str(done.url).partition("&until")[0]) == (200, f"{home}queues/orders?done={action}&n=1")
    assert "data-told" in done.text


def is_paused(conn: Connection) -> bool:
    """Return whether the queue `orders` is paused."""
    return conn.execute("SELECT paused FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (True,)


@pytest.mark.parametrize(("prefix", "keeps_host"), [("/queues", True), ("/user/ann/proxy/8080", False)])
def test_pgqueue_web_works_below_the_path_of_its_base_url(
    dsn: str, orders: None, conn: Connection, prefix: str, keeps_host: bool
) -> None:
    port, outside = free_port(), f"http://queues.example{prefix}"
    command = ("airflow_provider_pgqueue.cli", "web", "--json", "--port", str(port), "--base-url", f"{outside}/")
    with (
        proxied(prefix, strips=True, keeps_host=keeps_host) as (proxy, inside),
        serving(*command, PGQUEUE_DSN=dsn) as told,
        httpx.Client(headers={"Host": "queues.example"}, trust_env=False, timeout=60) as client,
    ):
        proxy.target = f"http://127.0.0.1:{port}"
        assert told["address"].startswith(f"{outside}/")
        assert client.get(f"{inside}/").status_code == 404
        works(client, told["address"].replace(outside, inside), "http://queues.example", "pause")
    assert is_paused(conn)


@pytest.mark.parametrize("given", ["queues", "/queues", "ftp://host/queues", "http:///queues", "http://host/?a=b"])
def test_a_base_url_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(click.UsageError, match="Give one like https://host/queues"):
        program.main(["web", "--base-url", given], standalone_mode=False)


@pytest.fixture
def airflow_below_a_path(dsn: str) -> Iterator[dict[str, Any]]:
    """The API server of Airflow, told that browsers see it as http://airflow.example/flow."""
    own = {"AIRFLOW_CONN_PGQUEUE_DEFAULT": as_json(dsn), "AIRFLOW__API__BASE_URL": "http://airflow.example/flow"}
    with serving("tests.web.airflow_server", **environment(), **own) as told:
        yield told


def test_the_page_in_airflow_works_below_the_path_of_its_base_url(
    airflow_below_a_path: dict[str, Any], orders: None, conn: Connection
) -> None:
    token = airflow_below_a_path["tokens"]["admin"]
    headers = {"Host": "airflow.example"}
    for strips, action in ((False, "pause"), (True, "resume")):
        with (
            proxied("/flow", strips=strips, keeps_host=not strips) as (proxy, inside),
            httpx.Client(headers=headers, cookies={"_token": token}, trust_env=False, timeout=60) as client,
            httpx.Client(headers=headers, trust_env=False, timeout=60) as nobody,
        ):
            proxy.target = airflow_below_a_path["address"]
            plugins = client.get(f"{inside}/api/v2/plugins").json()["plugins"]
            views = {view["destination"]: view for plugin in plugins for view in plugin["external_views"]}
            assert views["nav"]["href"] == "/flow/pgqueue/"
            assert client.get(httpx.URL(inside).join(views["nav"]["icon"])).status_code == 200
            works(client, f"{inside}/pgqueue/", "http://airflow.example", action)
            login = link_to_the_login(nobody, f"{inside}/pgqueue/queues/orders?span=week")
            assert login.path.rstrip("/") == "/flow/auth/login"
            assert login.params["next"] == "/flow/pgqueue/queues/orders?span=week"
        assert is_paused(conn) == (action == "pause")


def link_to_the_login(nobody: httpx.Client, address: str) -> httpx.URL:
    """Return where whoever is not known is led to log in."""
    refused = nobody.get(address)
    assert refused.status_code == 401
    (link,) = (html.unescape(one) for one in _ADDRESS.findall(refused.text) if "/auth/login" in one)
    return httpx.URL(nobody.get(refused.url.join(link)).headers["location"])
