"""The page of all queues."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Connection
from tests.web.conftest import Browse


def test_an_empty_database_says_how_to_make_the_first_queue(browse: Browse, conn: Connection) -> None:
    conn.execute("SELECT messages.drop_queue('default')")
    page = browse().get("/")
    assert page.status_code == 200
    assert "No queue yet" in page.text


def test_what_needs_attention_comes_first(browse: Browse, conn: Connection, queue: Callable[..., str]) -> None:
    queue("aaa")
    queue("zzz")
    conn.execute("SELECT messages.pause_queue('zzz')")
    page = browse().get("/").text
    assert page.index('id="queue-zzz"') < page.index('id="queue-aaa"')
