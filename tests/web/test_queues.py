"""The page of all queues."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.web import Person, make_app
from tests.conftest import Connection
from tests.core.roles.test_roles import logins
from tests.web.conftest import Browse
from tools.screenshots.served import served

Queue = Callable[..., str]


def test_an_empty_database_says_how_to_make_the_first_queue(browse: Browse, conn: Connection) -> None:
    conn.execute("SELECT messages.drop_queue('default')")
    page = browse().get("/")
    assert page.status_code == 200
    assert "No queue yet" in page.text


def test_what_needs_attention_comes_first(browse: Browse, conn: Connection, queue: Queue) -> None:
    queue("aaa")
    queue("zzz")
    conn.execute("SELECT messages.pause_queue('zzz')")
    page = browse().get("/").text
    assert page.index('id="queue-zzz"') < page.index('id="queue-aaa"')


def test_a_database_without_the_schema_is_told_how_to_install_it(browse: Browse, empty_dsn: str) -> None:
    page = browse(to=empty_dsn).get("/")
    assert page.status_code == 503
    assert "pgqueue install" in page.text


def test_ten_viewers_cost_one_query(dsn: str) -> None:
    asked = []

    def open_one() -> Any:
        asked.append(1)
        return connect_to(dsn)

    app = make_app(open_one, lambda: Person("ann"), secret=b"")
    with served(app) as address, ThreadPoolExecutor(10) as viewers:
        pages = list(viewers.map(lambda _: httpx.get(f"{address}/", trust_env=False, timeout=60), range(10)))
    assert {page.status_code for page in pages} == {200}
    # status(), health() and the plots of the queues.
    assert len(asked) == 3


def test_ten_thousand_queues_are_shown_by_pages(browse: Browse, conn: Connection) -> None:
    conn.execute("INSERT INTO messages.queue (queue_name) SELECT format('q%s', n) FROM generate_series(1, 10000) n")
    client = browse()
    first = client.get("/?sort=name&q=q99")
    assert first.status_code == 200
    assert first.text.count('<tr id="queue-') == 50
    assert "Page 1 of 3" in first.text
    assert client.get("/?sort=name&q=q99&page=3").text.count('<tr id="queue-') == 11


def test_a_number_of_which_there_is_more_says_so(browse: Browse, conn: Connection, queue: Queue) -> None:
    conn.execute(
        "INSERT INTO messages.message (queue_name, message) SELECT %s, '{}' FROM generate_series(1, 30000)",
        [queue("orders")],
    )
    conn.execute("SELECT messages.publish(%s, '{}')", [queue("short")])
    conn.execute("SELECT messages.lease('orders', 10)")
    client = browse(may_act=True)
    page = client.get("/").text
    for name, mark in (("orders", "+"), ("short", "")):
        row = page.partition(f'<tr id="queue-{name}">')[2].partition("</tr>")[0]
        cells = dict(re.findall(r'data-name="(\w+)">([^<]*)', row))
        marked = {cell: text[len(text.rstrip("+")) :] for cell, text in cells.items()}
        assert cells["Depth"] == ("10,000+" if mark else "1")
        assert marked == {"Depth": mark, "Ready": mark, "Leased": mark, "Oldest": "", "Dead": ""}
    # None of the counted messages is delayed, and nobody knows of the others.
    purge = r"<b>{}</b> has [\d,]+{more} ready messages?, [\d,]+{more} leased, {delayed} delayed"
    pages = [client.get(f"/queues/{path}").text for path in ("orders/purge", "short/purge", "orders")]
    assert re.search(purge.format("orders", more=r"\+", delayed="\N{EN DASH}"), pages[0])
    assert re.search(purge.format("short", more="", delayed="0"), pages[1])
    assert not re.search(r"\b0\+", "".join([page, *pages]))


def test_an_address_that_means_nothing_shows_the_first_page(browse: Browse) -> None:
    client = browse()
    for query in ("page=0", "page=-1", "page=x", "page=99999999999999", "sort=x", "show=<", "q=%00"):
        assert client.get(f"/?{query}").status_code == 200, query


def test_what_is_no_id_is_told_so(browse: Browse) -> None:
    client = browse()
    for id_ in ("0", "-1", "9223372036854775808", "x"):
        page = client.get(f"/messages/{id_}")
        assert page.status_code == 422
        assert "not valid: id" in page.text


@pytest.mark.parametrize("limit", [{"rate_limit": 1, "rate_period": "1 hour"}, {"max_leased": 1}])
def test_a_queue_that_reached_its_limit_says_until_when(
    browse: Browse, conn: Connection, queue: Queue, limit: dict[str, Any]
) -> None:
    queue("calls", **limit)
    conn.execute("SELECT count(*) FROM messages.publish_batch('calls', '[1, 2]')")
    assert "limited until" not in browse().get("/queues/calls").text
    conn.execute("SELECT count(*) FROM messages.lease('calls', 2)")
    page = browse().get("/queues/calls").text
    assert re.search(r"oldest [^<]+ · limited until <time", page)
    assert f"<dt>{next(iter(limit))}</dt>" in page


def test_a_login_that_may_not_see_bodies_sees_the_rest(browse: Browse, conn: Connection, dsn: str) -> None:
    (id_,) = conn.execute("SELECT messages.publish('default', '{}')").fetchone() or (0,)
    with logins(dsn) as login:
        login("page_observer", "messages_observer")
        client = browse(may_act=True, to=make_conninfo(dsn, user="page_observer"))
        assert "may not read this" in client.get(f"/messages/{id_}").text
        page = client.get("/queues/default")
    assert page.status_code == 200
    assert "may not read this" not in page.text
    assert "max_attempts" in page.text, "the policy"
