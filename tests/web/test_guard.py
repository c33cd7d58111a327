"""What keeps other sites out."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from tests.conftest import Connection
from tests.web.conftest import Browse, hidden


@pytest.fixture
def form(browse: Browse, queue: Callable[..., str]) -> tuple[httpx.Client, dict[str, str]]:
    """A client, and the fields of the form that pauses the queue `orders`."""
    client = browse(may_act=True)
    page = client.get(f"/queues/{queue('orders')}/pause").text
    return client, hidden(page)


HERE, THERE = {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}


def test_another_site_changes_nothing(form: tuple[httpx.Client, dict[str, str]], conn: Connection) -> None:
    client, fields = form
    for headers in (
        {},
        THERE,
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        THERE | {"Origin": "http://127.0.0.1"},
    ):
        assert client.post("/queues/orders/pause", data=fields, headers=headers).status_code == 403, headers
    assert conn.execute("SELECT paused FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (False,)


def test_a_form_without_a_good_token_changes_nothing(form: tuple[httpx.Client, dict[str, str]]) -> None:
    client, fields = form
    good, long, digit = "99999999999", "9" * 5000, "\N{SUPERSCRIPT TWO}"
    for token in ("", "1", "1.2", f"{good}.aa", f"{good}.b.aa", f"{long}.a", f"{digit}.a", "none"):
        answer = client.post("/queues/orders/pause", data=fields | {"token": token}, headers=HERE)
        assert answer.status_code == 403, token


def test_a_form_too_large_is_refused(form: tuple[httpx.Client, dict[str, str]]) -> None:
    client, fields = form
    large = fields | {"body": '"' + "x" * (3 << 20) + '"'}
    assert client.post("/queues/orders/publish", data=large, headers=HERE).status_code == 413


def test_every_response_runs_no_script_of_others_and_is_framed_by_nobody_else(browse: Browse) -> None:
    client = browse()
    for path in ("/", "/queues/unknown", "/static/page.css", "/nowhere", "/messages/x"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_browser_keeps_files_that_have_not_changed_and_no_page(browse: Browse) -> None:
    client = browse()
    for path in ("/static/page.css", "/vendor/htmx.js"):
        first = client.get(path)
        assert first.headers["Cache-Control"] == "no-cache"
        again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get("/").headers["Cache-Control"] == "no-store"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(
    browse: Browse, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    (id_,) = conn.execute("SELECT messages.publish('orders', '{}')").fetchone() or (0,)
    client = browse(may_act=True)
    for path in ("/", "/queues/orders", f"/messages/{id_}?body=1", "/queues/orders/policy"):
        page = client.get(path).text
        assert re.findall(r'<(?:script|style)>|\sstyle=|\son\w+=|(?:src|href|action)="(?!/|#|\?)', page) == []
