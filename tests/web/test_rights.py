"""What is offered is what may be done, and what is missing is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import run, verbs
from tests.conftest import Connection
from tests.core.roles.test_roles import logins
from tests.web.conftest import Browse

Queue = Callable[..., str]
OF_QUEUES = {"pause", "publish", "policy", "purge", "requeue", "dismiss"}
ROLES = {
    "messages_observer": set(),
    "messages_observer, messages_consumer": {"requeue", "dismiss", "release", "cancel"},
    "messages_observer, messages_publisher": {"publish"},
    "messages_observer, messages_consumer, messages_publisher": {
        "publish",
        "requeue",
        "dismiss",
        "release",
        "cancel",
    },
    "messages_admin": {*OF_QUEUES, "release", "cancel"},
}
Login = Callable[[str], str]


@pytest.fixture
def login(dsn: str) -> Iterator[Login]:
    """Return where a login of some group roles connects to."""
    with logins(dsn) as make:

        def made(groups: str) -> str:
            make("page_login", *groups.split(", ")).close()
            return make_conninfo(dsn, user="page_login")

        yield made


@pytest.fixture
def places(conn: Connection, queue: Queue) -> dict[str, str]:
    """The pages of a queue `orders`, of a dead message, of a leased one and of one that waits."""
    queue("orders", max_attempts=1)
    run(conn, verbs.publish_batch("orders", [1, 2]))
    dead, leased = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(dead.lock_token, [dead.id], result="failed", details="no stock"))
    conn.execute("SELECT messages.maintain()")
    ids = {"dead": dead.id, "leased": leased.id, "waiting": run(conn, verbs.publish("orders", 3))}
    return {"queue": "/queues/orders"} | {name: f"/messages/{id_}" for name, id_ in ids.items()}


def offered(page: str) -> set[str]:
    """Return the actions to which a page links."""
    return set(re.findall(r'href="/(?:queues/\w+|messages/\d+)/(\w+)[?"]', page)) - {"messages"}


@pytest.mark.parametrize("groups", ROLES)
def test_what_the_login_may_not_do_is_not_offered_and_what_it_lacks_is_named(
    browse: Browse, login: Login, places: dict[str, str], groups: str
) -> None:
    client, may = browse(may_act=True, to=login(groups)), ROLES[groups]
    found = {name: client.get(place).text for name, place in places.items()}
    assert offered(found["queue"]) == may & OF_QUEUES
    assert offered(found["dead"]) == may & {"requeue", "dismiss"}
    assert offered(found["leased"]) == may & {"release", "cancel"}
    assert offered(found["waiting"]) == may & {"cancel"}
    for page in found.values():
        assert ("GRANT messages_admin TO page_login" in page) == (groups != "messages_admin")
        assert ("GRANT messages_consumer TO page_login" in page) == ("requeue" not in may)
        assert ("GRANT messages_publisher TO page_login" in page) == ("publish" not in may)
    for action in OF_QUEUES:
        page = client.get(f"/queues/orders/{action}")
        assert page.status_code == (200 if action in may else 403), action
        if action not in may:
            assert "TO page_login;" in page.text


def test_a_login_of_one_team_is_offered_what_was_granted(
    browse: Browse, conn: Connection, login: Login, places: dict[str, str]
) -> None:
    to = login("messages_observer, messages_consumer, messages_publisher, messages_limited")
    run(conn, verbs.grant_queue("orders", "page_login", "observe"))
    client = browse(may_act=True, to=to)
    page = client.get("/queues/orders").text
    assert offered(page) == set()
    assert "SELECT messages.grant_queue(&#39;orders&#39;, &#39;page_login&#39;, &#39;consume&#39;)" in page
    run(conn, verbs.grant_queue("orders", "page_login", "consume"))
    client = browse(may_act=True, to=to)
    assert offered(client.get("/queues/orders").text) == {"requeue", "dismiss"}
    assert client.get("/queues/orders/publish").status_code == 403


def test_a_viewer_is_offered_nothing_and_told_why(browse: Browse, places: dict[str, str]) -> None:
    client = browse()
    for place in places.values():
        page = client.get(place).text
        assert offered(page) == set()
        assert "You may look at the queues, and not change them." in page


def test_whoever_only_looks_sees_the_class_of_an_error_whatever_the_login_may_read(
    conn: Connection, browse: Browse, queue: Queue
) -> None:
    queue("orders", max_attempts=2)
    run(conn, verbs.publish_batch("orders", [1, 2, 3]))
    failure = {"error": "CardError", "message": "CANARY of the card", "traceback": "CANARY in a frame"}
    dead, waiting, taken = run(conn, verbs.lease("orders", max_messages=3))
    run(conn, verbs.archive(dead.lock_token, [dead.id], result="failed", details="CANARY", outcomes=None))
    conn.execute("UPDATE messages.archive_rows SET failure = %s", [json.dumps(failure)])
    run(conn, verbs.release(waiting.lock_token, [waiting.id], delay=timedelta(hours=1), failure=failure))
    run(conn, verbs.release(taken.lock_token, [taken.id]))
    run(conn, verbs.dispatch_messages("orders", "pack"))
    (run_id,) = conn.execute("SELECT run_id FROM messages.dispatch").fetchone() or (None,)
    run(conn, verbs.end_dispatch("pack", str(run_id), "failed", details="CANARY of the run"))
    places = ["/queues/orders", f"/messages/{dead.id}", f"/messages/{waiting.id}", f"/messages/{taken.id}"]
    # To both from one cache.
    person = [False]
    client = browse(may_act=lambda: person[0])
    for may_act in (True, False):
        person[0] = may_act
        for place in (*places, "/dags/pack"):
            page = client.get(place).text
            assert ("canary" in page.lower()) == may_act, place
            assert "CardError" in page or place in (f"/messages/{taken.id}", "/dags/pack")


def test_a_login_that_has_the_role_and_does_not_inherit_it_is_told_so(
    browse: Browse, conn: Connection, login: Login, places: dict[str, str]
) -> None:
    dsn = login("messages_observer")
    conn.execute("REVOKE messages_observer FROM page_login; ALTER ROLE page_login NOINHERIT")
    # From version 16 on, what it inherits is decided here.
    conn.execute("GRANT messages_observer, messages_admin TO page_login")
    page = browse(may_act=True, to=dsn).get(places["queue"]).text
    assert "GRANT messages_observer TO page_login<" not in page
    assert re.search(r"ALTER ROLE page_login INHERIT|GRANT messages_observer TO page_login WITH INHERIT TRUE", page)
