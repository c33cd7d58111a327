"""Who may do what, through the API server of Airflow with its own login."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from airflow_provider_pgqueue.core import Lease, Success, run, verbs
from tests.airflow_layer.conftest import as_json
from tests.conftest import Connection
from tests.web.airflow_server import PASSWORD, ROLES, auth_manager, environment, make_server, token_of
from tests.web.conftest import hidden
from tools import ROOT
from tools.screenshots.served import served

Client = Callable[..., httpx.Client]
USERS = ("nobody", *ROLES)
_ROW = re.compile(r"\| `(GET|POST) (\S+)` \|((?: \d+ \|)+)")


def documented() -> dict[tuple[str, str], dict[str, int]]:
    """Return the table next to this file: the status for each request and user."""
    text = (ROOT / "tests/web/access.md").read_text()
    return {
        (method, path): dict(zip(USERS, map(int, cells.strip(" |").split(" | ")), strict=True))
        for method, path, cells in _ROW.findall(text)
    }


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        with served(make_server()) as address:
            yield address


@pytest.fixture
def client(address: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client for a role, or for nobody: `client("viewer")`. The page shows the database of the test."""
    monkeypatch.setenv("AIRFLOW_CONN_PGQUEUE_DEFAULT", as_json(dsn))
    # Each test has a database of its own, and the page keeps results for seconds.
    _forget()
    opened: list[httpx.Client] = []

    def open_one(role: str) -> httpx.Client:
        cookies = {} if role == "nobody" else {"_token": token_of(role)}
        opened.append(httpx.Client(base_url=f"{address}/pgqueue", cookies=cookies, trust_env=False, timeout=60))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def _forget() -> None:
    from airflow_provider_pgqueue.plugins.plugin import PgQueuePlugin

    app: Any = PgQueuePlugin.fastapi_apps[0]["app"]
    if app._app is not None:
        app._app.state.site.shared.forget()


@pytest.fixture
def ids(conn: Connection, queue: Callable[..., str]) -> dict[str, int]:
    """A queue `orders` with a waiting message, a leased and some dead ones, by what they are called in the table."""
    queue("orders", max_attempts=1)
    for _ in range(6):
        conn.execute("SELECT messages.publish('orders', '{}')")
    held = conn.execute("SELECT id, lock_token FROM messages.lease('orders', 5)").fetchall()
    for id_, token in held[1:]:
        conn.execute("SELECT messages.archive(%s, %s, 'failed', 'no such city')", [token, [id_]])
    return {"waiting": held[-1][0] + 1, "leased": held[0][0], "dead": held[1][0], "other": held[2][0]}


def test_the_page_is_in_the_navigation_and_a_tab_of_what_has_messages(client: Client, address: str) -> None:
    plugins = client("admin").get(f"{address}/api/v2/plugins").json()["plugins"]
    views = [view for plugin in plugins for view in plugin["external_views"]]
    ours = {view["destination"]: view["href"] for view in views if view["href"].startswith("/pgqueue/")}
    assert ours.keys() == {"nav", "dag", "dag_run", "task_instance"}
    assert ours["nav"] == "/pgqueue/"
    assert client("nobody").get("/static/queues.svg").status_code == 200


def test_who_may_see_plugins_has_the_page_in_the_navigation(client: Client, address: str) -> None:
    # Airflow's interface asks there; FAB's own roles may see plugins from Op up, as the documentation says.
    least = "op" if "Fab" in auth_manager() else "viewer"
    for role in ROLES:
        sees = ROLES.index(role) >= ROLES.index(least)
        assert client(role).get(f"{address}/api/v2/plugins").status_code == (200 if sees else 403), role


@pytest.mark.parametrize("token", [None, "not a login"])
def test_who_is_not_logged_in_gets_a_link_to_the_login_that_leads_back(
    client: Client, queue: Callable[..., str], token: str | None
) -> None:
    browser, path = client("nobody"), f"/queues/{queue('orders')}?span=week"
    browser.cookies.update({"_token": token} if token else {})
    refused = browser.get(path)
    assert refused.status_code == (403 if token else 401)
    link = html.unescape(re.findall(r'<a class="button" href="([^"]*)"', refused.text)[0])
    page = browser.get(httpx.URL(refused.url).join(link), follow_redirects=True)
    assert page.status_code == 200
    assert page.url.path.rstrip("/") == "/auth/login"
    assert page.url.params["next"] == f"/pgqueue{path}"
    if "FabAuthManager" in auth_manager():
        form = {"csrf_token": re.findall(r'name="csrf_token"[^>]* value="([^"]+)"', page.text)[0]}
        form |= {"username": "viewer-ann", "password": PASSWORD}
        shown = browser.post(page.url, data=form, headers={"Referer": str(page.url)}, follow_redirects=True)
        assert shown.url == refused.url
        assert shown.status_code == 200
        assert "<h1>orders" in shown.text


@pytest.mark.parametrize("user", USERS)
def test_each_route_for_each_user(
    client: Client, address: str, ids: dict[str, int], user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = documented()
    assert len(table) == 37
    browser, found = client(user), {}
    for method, path in table:
        place = path.format_map(ids)
        if method == "GET":
            found[method, path] = browser.get(place).status_code
        else:
            fields = {
                **_form(browser, place),
                "reason": "a test",
                "body": "{}",
                "max_attempts": "7",
                "max_messages": "1",
            }
            found[method, path] = browser.post(place, data=fields, headers={"Origin": address}).status_code
    with capsys.disabled():
        print(f"\n{user}: " + ", ".join(f"{method} {path} {status}" for (method, path), status in found.items()))
    assert found == {key: cells[user] for key, cells in table.items()}


def _form(browser: httpx.Client, path: str) -> dict[str, str]:
    return hidden(browser.get(path).text)


def test_every_route_of_the_page_is_in_the_table() -> None:
    from airflow_provider_pgqueue.web import Person, make_app
    from airflow_provider_pgqueue.web.actions import OF_MESSAGES, OF_QUEUES

    app = make_app(lambda: None, lambda: Person("ann"), secret=b"")  # type: ignore[arg-type,return-value]
    routes = {
        (method, path.replace("{action}", action))
        for route in app.routes
        for path in [getattr(route, "path", "")]
        for method in getattr(route, "methods", None) or ()
        for action in ((OF_MESSAGES if "messages" in path else OF_QUEUES) if "{action}" in path else [""])
    }
    tried = {(method, _pattern(path)) for method, path in documented()}
    assert routes <= tried, "add the route to tests/web/access.md"


def _pattern(path: str) -> str:
    named = path.split("?")[0]
    for real, pattern in (
        (r"^/messages/[^/]+", "/messages/{id}"),
        (r"^/queues/\w+", "/queues/{name}"),
        (r"^/dags/\w+", "/dags/{dag_id}"),
        (r"^/runs/\w+/\w+", "/runs/{dag_id}/{run_id:path}"),
        (r"^/tasks/\w+/\w+/-1/\w+", "/tasks/{dag_id}/{task_id}/{map_index}/{run_id:path}"),
    ):
        named = re.sub(real, pattern, named)
    return named


def test_what_is_done_is_recorded_with_the_name_of_the_user(
    client: Client, address: str, ids: dict[str, int], conn: Connection
) -> None:
    browser = client("op")
    browser.post("/queues/orders/pause", data=_form(browser, "/queues/orders/pause"), headers={"Origin": address})
    assert conn.execute("SELECT paused FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (True,)
    assert ("op-ann", "pause_queue") in conn.execute("SELECT acting_user, action FROM messages.audit_log()").fetchall()


def test_who_may_not_act_sees_no_body_and_no_header(
    client: Client, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    row = conn.execute(
        """SELECT messages.publish('orders', '"what is inside"', headers => '{"key": "what is next to"}')"""
    ).fetchone()
    assert row is not None
    for path in (f"/messages/{row[0]}", f"/messages/{row[0]}?body=1", "/queues/orders", "/"):
        page = client("viewer").get(path).text
        assert "what is inside" not in page
        assert "what is next to" not in page
    assert "what is next to" in client("op").get(f"/messages/{row[0]}").text
    assert "what is inside" not in client("op").get(f"/messages/{row[0]}").text
    assert "what is inside" in client("op").get(f"/messages/{row[0]}?body=1").text


def test_who_may_not_act_sees_no_output_of_a_handler(
    client: Client, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    id_ = run(conn, verbs.publish("orders", 1))
    with Lease(conn, run(conn, verbs.lease("orders"))) as lease:
        lease.settle({lease[0]: Success(output={"key": "what came out"})})
    path = f"/messages/{id_}"
    assert "what came out" in client("op").get(path).text
    assert "what came out" not in client("viewer").get(path).text
