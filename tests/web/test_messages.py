"""The lists of messages, and the pages that lead to them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_pgqueue.core import Consumer, Message, run, verbs
from tests.conftest import Connection
from tests.web.conftest import Browse

LIST = "/queues/orders/messages"
STATES = ("ready", "delayed", "leased", "done", "dead")
Queue = Callable[..., str]


@pytest.fixture
def ids(conn: Connection, queue: Queue) -> dict[str, list[int]]:
    """The messages of `orders`: sixty dead ones of one cause, and three of each other state."""
    queue("orders", max_attempts=1)
    found = {}
    for state in ("dead", "done", "leased", "ready", "delayed"):
        number = 60 if state == "dead" else 3
        references, topics = ([f"{state}-{n}" for n in range(number)], [f"eu.{state}"] * number)
        delay = timedelta(hours=state == "delayed")
        bodies = [{"secret": state}] * number
        found[state] = list(
            run(conn, verbs.publish_batch("orders", bodies, references=references, topics=topics, delay=delay))
        )
        if state in ("dead", "done", "leased"):
            token = run(conn, verbs.lease("orders", max_messages=number, locked_by="packer"))[0].lock_token
        if state in ("dead", "done"):
            result = {"dead": "failed", "done": "success"}[state]
            run(conn, verbs.archive(token, found[state], result=result, details="no stock"))
    conn.execute("SELECT messages.maintain()")
    return found


def listed(page: str) -> list[int]:
    return [int(id_) for id_ in re.findall(r'<tr id="message-(\d+)">', page)]


def test_a_state_is_listed_and_searched(browse: Browse, ids: dict[str, list[int]]) -> None:
    client = browse()
    for state in STATES:
        assert set(listed(client.get(f"{LIST}?state={state}").text)) <= set(ids[state])
        assert listed(client.get(f"{LIST}?state={state}&q={state}-1").text) == [ids[state][1]]
        assert listed(client.get(f"{LIST}?state={state}&until=2020-01-01T00:00").text) == []
        assert listed(client.get(f"/messages?q={ids[state][2]}").text) == [ids[state][2]]
        assert listed(client.get(f"/messages?q={state}-2").text) == [ids[state][2]]


def test_all_messages_of_a_cause_are_reached_from_its_row(browse: Browse, ids: dict[str, list[int]]) -> None:
    client = browse(may_act=True)
    page = client.get("/queues/orders").text
    (place,) = re.findall(r'href="(/queues/orders/messages\?state=dead&amp;fingerprint=\w+)"', page)
    found: list[int] = []
    for _ in range(3):
        page = client.get(html.unescape(place)).text
        found += listed(page)
        if not (onward := re.findall(r'id="next"[^>]* href="([^"]+)"', page)):
            break
        (place,) = onward
    assert found == ids["dead"][::-1]


def test_a_quiet_queue_is_found_behind_a_busy_one(
    browse: Browse, conn: Connection, ids: dict[str, list[int]], queue: Queue
) -> None:
    queue("busy")
    conn.execute(
        "INSERT INTO messages.archive_rows (queue_name, message, created_at, archived_at, result)"
        " SELECT 'busy', '{}', now(), now(), 'success' FROM generate_series(1, 100000) n"
    )
    client = browse()
    page = client.get(f"{LIST}?state=done").text
    assert listed(page) == []
    (further,) = re.findall(r'id="further"[^>]* href="([^"]+)"', page)
    page = client.get(html.unescape(further)).text
    assert listed(page) == ids["done"][::-1]
    assert 'id="further"' not in page


def test_bodies_are_shown_to_whoever_may_see_them(browse: Browse, ids: dict[str, list[int]]) -> None:
    assert "secret" in browse(may_act=True).get(f"{LIST}?state=ready").text
    assert "secret" not in browse().get(f"{LIST}?state=ready").text


def test_each_number_of_a_queue_leads_to_its_list_and_the_causes_come_first(
    browse: Browse, ids: dict[str, list[int]]
) -> None:
    page = browse(may_act=True).get("/queues/orders").text
    assert {f"{LIST}?state={state}" for state in STATES} <= set(re.findall(r'href="?([^" >]+)', page))
    assert page.index("Dead messages by cause") < page.index("The last hour")
    assert re.search(r'<a class="button quiet danger" id="do-purge"', page)
    assert not re.search(r'danger" id="do-pause"', page)


def test_what_the_history_does_not_know_is_not_zero(
    browse: Browse, conn: Connection, ids: dict[str, list[int]]
) -> None:
    conn.execute(
        "UPDATE messages.history_progress SET counted_at = now() - interval '1 minute',"
        " begun_at = now() - interval '1 day'"
    )
    assert "in the last hour, up to a minute ago" in browse().get("/queues/orders").text
    conn.execute(
        "UPDATE messages.history_progress SET counted_at = now() - interval '20 minutes',"
        " begun_at = now() - interval '1 day'"
    )
    client = browse(may_act=True)
    since = r"unknown since <time"
    assert re.search(since, client.get("/queues/orders").text)
    assert re.search(since, client.get("/").text)
    conn.execute("UPDATE messages.history_progress SET counted_at = now() - interval '5 hours'")
    client = browse(may_act=True)
    for path in ("/queues/orders", "/"):
        assert "unknown: the history is behind" in client.get(path).text
    assert ">nothing<" not in client.get("/").text


def test_the_size_of_a_body_has_a_unit_and_an_empty_queue_is_shown_in_words(
    browse: Browse, conn: Connection, ids: dict[str, list[int]], queue: Queue
) -> None:
    queue("never_used")
    conn.execute("UPDATE messages.history_progress SET counted_at = now(), begun_at = now() - interval '1 day'")
    (large,) = run(conn, verbs.publish_batch("orders", ["".join(map(chr, range(0x4E00, 0x6E00)))]))
    client = browse(may_act=True)
    for id_, size in ((ids["done"][0], r"\d\d bytes"), (large, r"24\.0 KiB")):
        assert re.search(rf"<dt>body</dt><dd>{size}</dd>", client.get(f"/messages/{id_}").text)
    assert "24.0 KiB" in client.get(f"{LIST}?state=ready").text, "in place of a body that is too large to preview"
    row = client.get("/").text.partition('<tr id="queue-never_used">')[2].partition("</tr>")[0]
    assert re.search(r'data-name="Oldest">none</td>\s*<td class="spark">\s*<small>nothing</small>', row)


def test_every_attempt_is_on_the_page_of_a_message_with_the_frames_of_the_handler_first(
    browse: Browse, conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=3)
    id_ = run(conn, verbs.publish("orders", 1))
    library = '  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode\n    raise error\n'
    own = '  File "/srv/shop.py", line 12, in pack\n    take(stock)\n'
    for number in range(2):
        failure = {"error": f"Error{number}", "message": "CANARY", "traceback": f"{own}{library}Error{number}: CANARY"}
        (held,) = run(conn, verbs.lease("orders"))
        run(conn, verbs.release(held.lock_token, [id_], failure=failure))
    page = html.unescape(browse(may_act=True).get(f"/messages/{id_}").text)
    assert page.count("attempt failed") == 2
    for number in range(2):
        first, _, whole = page.partition(f'id="traceback-{number + 1}"')
        assert f"{own}Error{number}: CANARY" in first
        assert library in whole
    page = browse().get(f"/messages/{id_}").text
    assert page.count("attempt failed") == 2
    assert "Error1" in page
    assert "CANARY" not in page
    assert "shop.py" not in page


def test_equal_attempts_have_one_traceback_and_name_the_class_once(
    browse: Browse, conn: Connection, queue: Queue
) -> None:
    id_ = run(conn, verbs.publish(queue("orders", max_attempts=3, backoff_first="0"), 1))

    def handle(message: Message) -> None:
        raise KeyError("city")

    Consumer(queue_name="orders", handle=handle).drain(conn)
    page = html.unescape(browse(may_act=True).get(f"/messages/{id_}").text)
    assert page.count("The whole traceback") == 1
    assert page.count("The traceback is that of attempt 1.") == 2
    assert page.count("<b>KeyError</b> 'city'</div>") == 3


def test_a_message_that_waits_behind_its_group_has_a_page(browse: Browse, conn: Connection, queue: Queue) -> None:
    queue("orders")
    _, second = run(conn, verbs.publish_batch("orders", [1, 2], group_keys=["a", "a"]))
    run(conn, verbs.lease("orders"))
    assert re.search(r"<h1>.*>behind<.*</h1>", browse().get(f"/messages/{second}").text, re.S)


def test_an_address_that_somebody_made_up_is_answered(browse: Browse, ids: dict[str, list[int]]) -> None:
    client = browse()
    for asked in ("state=x", "after_id=x", "q=9" + "9" * 30):
        assert client.get(f"{LIST}?{asked}").status_code == 200, asked
    for asked in ("q=%00", "since=soon"):
        assert client.get(f"{LIST}?{asked}").status_code == 400, asked
