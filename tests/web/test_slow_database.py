"""A database that is slow or away holds up the page, and not the server that serves it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core.errors import ConnectionFailed
from airflow_provider_pgqueue.web.cached import Shared
from tests.web.conftest import Browse


def test_a_table_that_is_locked_ends_in_a_page_that_says_so(browse: Browse, dsn: str) -> None:
    client = browse()
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE messages.queue IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(12) as pool:
            pages = list(pool.map(lambda _: client.get("/"), range(12)))
        assert {page.status_code for page in pages} == {503}
        assert any("did not answer within" in page.text for page in pages)
        assert client.get("/static/page.css").status_code == 200
    assert client.get("/static/%00").status_code == 404


def test_who_may_only_look_is_not_told_which_server_and_login_failed(browse: Browse, dsn: str) -> None:
    away = make_conninfo(dsn, port=1, user="login_of_the_page")
    for path in ("/", "/queues/orders", "/messages/1", "/dags/pack"):
        told = browse(may_act=True, to=away).get(path)
        assert told.status_code == 503
        assert "port 1 failed" in told.text
        assert "Out of reach" in told.text
        assert "Check the connection" in told.text
        page = browse(to=away).get(path)
        assert page.status_code == 503
        assert "the database of the queues cannot be reached" in page.text
        assert "127.0.0.1" not in page.text
        assert "login_of_the_page" not in page.text


def test_no_limit_of_the_page_stays_in_a_session(dsn: str) -> None:
    from airflow_provider_pgqueue.core.connection import connect
    from airflow_provider_pgqueue.web.request import Links, Site

    with connect(dsn) as conn:
        from contextlib import nullcontext

        before = conn.execute("SHOW statement_timeout").fetchone()
        with Site(lambda: nullcontext(conn), b"", Links()).reading() as reading:
            assert reading.execute("SHOW statement_timeout").fetchone() == ("5s",)
        assert conn.execute("SHOW statement_timeout").fetchone() == before


def test_whoever_asks_while_another_still_waits_gets_the_last_result() -> None:
    shared, going_on, found = Shared(patience=0.05), threading.Event(), threading.Event()

    def slow() -> str:
        found.set()
        going_on.wait(30)
        return "new"

    assert shared.get("a", lambda: "old", seconds=0) == "old"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shared.get, "a", slow, seconds=10)
        assert found.wait(30)
        assert shared.get("a", lambda: "never", seconds=0) == "old"
        going_on.set()
        assert first.result() == "new"


def test_a_database_that_is_away_is_asked_once_in_a_while() -> None:
    now = 0.0
    shared, asked = Shared(lambda: now), 0

    def away() -> Any:
        nonlocal asked
        asked += 1
        raise ConnectionFailed("it is away")

    for _ in range(20):
        with pytest.raises(ConnectionFailed):
            shared.get("a", away)
    assert asked == 1
    now = 3.5
    assert shared.get("a", lambda: "back") == "back"
