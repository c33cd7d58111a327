"""The page without Airflow."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.responses import HTMLResponse

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.web.standalone import make_alone
from tests.web.conftest import serving
from tools import chromium
from tools.screenshots.served import served

NEIGHBOUR = '<script>fetch("/again", {credentials: "include"}).then(() => document.title = "told")</script>'


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    with served(make_alone(lambda: connect_to(dsn), "the-token", may_act=True)) as address:
        yield address


@contextmanager
def command(dsn: str, *options: str) -> Iterator[str]:
    """Run `pgqueue web`, and give the address that it prints."""
    with serving("airflow_provider_pgqueue.cli", "web", "--json", *options, PGQUEUE_DSN=dsn) as told:
        yield told["address"]


def test_nobody_sees_the_page_without_its_whole_address(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as client:
        assert client.get("/the-token/").status_code == 200
        assert client.get("/the-token/queues/default").status_code == 200
        for path in ("/", "", "/queues/default", "/static/page.css", "/the-toke/", "/the-tokens/", "/\xe4/"):
            refused = client.get(path)
            assert refused.status_code == 404, path
            assert "Open the address that pgqueue web printed" in refused.text
            assert "Content-Security-Policy" in refused.headers
            assert "the-token" not in refused.text + str(refused.headers)


def test_a_page_that_gave_this_machine_a_name_of_its_own_gets_nothing(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as client:
        elsewhere = {"Host": "elsewhere.example"}
        assert client.get("/", headers=elsewhere).status_code == 403
        assert client.get("/the-token/", headers=elsewhere).status_code == 403


@pytest.mark.browser
def test_a_server_at_another_port_of_this_machine_learns_nothing(dsn: str) -> None:
    """A browser gives a cookie of one port to all others, and may say where it comes from."""
    heard: list[str] = []

    async def neighbour(scope: Any, *channels: Any) -> None:
        heard.append(f"{scope['path']} {scope['query_string']} {scope['headers']}")
        await HTMLResponse(NEIGHBOUR)(scope, *channels)

    with command(dsn) as address, served(neighbour) as elsewhere, chromium.browser() as tab:
        token = max(urlsplit(address).path.split("/"), key=len)
        tab.open(address)
        assert tab.value("document.querySelector('h1').textContent") == "Queues"
        assert tab.value("document.cookie") == ""
        tab.value(f"Object.assign(document.createElement('a'), {{href: '{elsewhere}/first'}}).click()")
        tab.until("document.title === 'told'")
        tab.open(f"{elsewhere}/second")
        tab.until("document.title === 'told'")
        cookies = tab.call("Network.getCookies", urls=[address, elsewhere])["cookies"]
    assert {one.split()[0] for one in heard} >= {"/first", "/second", "/again"}
    assert [one for one in heard if token in one or "b'cookie'" in one] == []
    assert cookies == []


def test_the_command_prints_an_address_that_works_and_no_error_names_a_version(dsn: str) -> None:
    """Nor which server it is: whoever looks for one with a known weakness should not find it by asking."""
    with command(dsn, "--read-only") as address:
        with httpx.Client(trust_env=False, timeout=60) as client:
            page = client.get(address)
            assert page.status_code == 200
            assert client.get(page.url.join("queues/default/pause")).status_code == 403
        where = urlsplit(address)
        pages = ("queues/nope", "nothing", "queues/default/pause", "messages/x", "static/nope.css")
        asked = ["GET /", "GET /wrong/", f"POST {where.path}", *(f"GET {where.path}{name}" for name in pages)]
        for line in (
            *(f"{one} HTTP/1.1\r\nHost: 127.0.0.1" for one in asked),
            "GET / HTTP/1.1\r\nHost: else",
            "no HTTP",
        ):
            with socket.create_connection(("127.0.0.1", where.port or 80), timeout=60) as conn:
                conn.sendall(f"{line}\r\nConnection: close\r\n\r\n".encode())
                told = conn.makefile("rb").read().decode()
            assert re.match(r"HTTP/1\.1 4\d\d ", told), told
            assert names_no_version(told)


def names_no_version(told: str) -> bool:
    """Return whether an answer keeps to itself what answers, and in which version."""
    libraries = ("airflow-provider-pgqueue", "fastapi", "jinja2", "psycopg", "starlette", "uvicorn")
    known = {platform.python_version(), *map(metadata.version, libraries), *libraries[1:], "Python"}
    return not any(re.search(rf"(?i)(?<![\w.]){re.escape(one)}(?![\w.])", told) for one in known)
