"""The page in a real browser: inside a frame, as Airflow shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.web import Person, make_app
from tests.conftest import Connection
from tools import chromium
from tools.screenshots.served import served

pytestmark = pytest.mark.browser
HERE = Path(__file__).parent
HOSTILE = (
    "<script>document.documentElement.dataset.broken = 1</script>",
    '"><img src=x onerror="document.documentElement.dataset.broken = 2">',
    "'; document.documentElement.dataset.broken = 3; //",
    "{{ 7 * 7 }} {% raw %} ${7 * 7}",
    "\u202eretsinis\u202c \u2066isolate\u2069 \u200bhidden\u3164\u2800 \u0007bell",
    "javascript:document.documentElement.dataset.broken=4",
    '</pre></textarea></title><svg onload="document.documentElement.dataset.broken = 5">',
)


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Browser]:
    with chromium.browser() as tab:
        yield tab


def checked(
    tab: chromium.Browser, dsn: str, paths: list[str], *, width: int = 1200, dark: bool = False, axe: bool = True
) -> dict[str, Any]:
    """Return what a script says that opens each page in a frame, as Airflow does, and looks around in it.

    :param axe: whether axe looks too, which takes the most.
    """
    app = FastAPI()
    judge = (HERE / "judge.html").read_text().replace("PATHS", json.dumps(paths)).replace("WIDTH", str(width))
    judge = judge.replace("AXE", json.dumps(axe))
    app.add_api_route("/judge", lambda: HTMLResponse(judge))
    app.add_api_route("/judge.js", lambda: FileResponse(HERE / "judge.js"))
    app.add_api_route("/axe.js", lambda: FileResponse(HERE / "vendor" / "axe.js"))
    app.mount("/pgqueue", make_app(lambda: connect_to(dsn), lambda: Person("ann", True), secret=b"a secret"))
    with served(app) as address:
        tab.resize(width=1240, height=900, dark=dark)
        tab.open(f"{address}/judge")
        told: dict[str, Any] = json.loads(tab.until("document.getElementById('check')?.textContent"))
        tab.resize(width=1240, height=900)
    return told


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    """Where the page is served, alone."""
    with served(make_app(lambda: connect_to(dsn), lambda: Person("ann", True), secret=b"a secret")) as address:
        yield address


@pytest.fixture
def message(conn: Connection, queue: Callable[..., str]) -> int:
    """A dead message in which strangers wrote whatever they could, and others that wait and are leased."""
    queue("orders", max_attempts=1)
    text = " ".join(HOSTILE) + "y" * 150
    large = json.dumps({**dict(enumerate(HOSTILE)), "large": "\u202e" + "x" * 60_000})
    body = json.dumps({one: one for one in HOSTILE})
    conn.execute(
        "SELECT messages.publish('orders', %s, headers => %s, reference => %s) FROM generate_series(1, 3)",
        [body, large, text[:200]],
    )
    row = conn.execute("SELECT id, lock_token FROM messages.lease('orders', 1, locked_by => %s)", [text]).fetchone()
    assert row is not None
    failure = json.dumps({"error": text[:200], "message": text, "traceback": "\n".join(HOSTILE)})
    conn.execute(
        "SELECT messages.archive(%s, %s, 'failed', %s, handled_by => %s, failure => %s)",
        [row[1], [row[0]], text, text, failure],
    )
    conn.execute("SELECT messages.lease('orders', 1, locked_by => %s)", [text])
    with conn.transaction():
        conn.execute("SELECT messages.act_for(%s)", [text[:250]])
        conn.execute("SELECT messages.pause_queue('orders')")
    for _ in range(2):  # the first fixes what the second counts, at least a minute later
        conn.execute("UPDATE messages.history_progress SET next_at = next_at - interval '1 minute'")
        conn.execute("SELECT messages.maintain()")
    conn.execute("UPDATE messages.history_progress SET counted_at = recorded_at")
    id_: int = row[0]
    return id_


def test_what_strangers_wrote_is_text(tab: chromium.Browser, dsn: str, message: int) -> None:
    pages = ["/", "/queues/orders", f"/messages/{message}?body=1", f"/messages/{message}/dismiss"]
    pages += ["/queues/orders/messages", "/queues/orders/messages?" + urlencode({"q": HOSTILE[1]})]
    pages += ["/queues/orders/requeue?" + urlencode({"reference": HOSTILE[1], "fingerprint": HOSTILE[0]})]
    found = checked(tab, dsn, [f"/pgqueue{page}" for page in pages], axe=False)
    for page in pages:
        told = found[f"/pgqueue{page}"]
        assert told["broken"] is None
        assert told["foreign"] == [], "an element that no template of ours has"
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u3164\u2800\u0007]", told["text"])
        assert told["violations"] == [], "the policy was needed"
    assert HOSTILE[0] in found[f"/pgqueue{pages[2]}"]["text"]


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (360, False)], ids=["wide", "dark", "narrow"])
def test_everybody_can_use_the_page(tab: chromium.Browser, dsn: str, message: int, width: int, dark: bool) -> None:
    pages = ["/", "/queues/orders", f"/messages/{message}?body=1", "/queues/orders/policy", "/queues/unknown"]
    pages += ["/queues/orders/requeue", f"/messages/{message}/dismiss", "/dags/pack"]
    pages += ["/queues/orders/messages?state=dead", "/messages"]
    found = checked(tab, dsn, [f"/pgqueue{page}" for page in pages], width=width, dark=dark)
    assert {page: told["axe"] for page, told in found.items()} == {page: [] for page in found}
    assert min(told["checked"] for told in found.values()) > 10
    assert [told["unnamed"] for told in found.values() if told["unnamed"]] == [], "no caption, scope or text"
    # A refresh leaves the keyboard where it was, and draws no plot again that did not change.
    assert found["/pgqueue/"]["focus"] == ["by-dead", "by-dead"]
    assert found["/pgqueue/"]["refreshed"] is True
    assert found["/pgqueue/queues/orders"]["drawn"] > 0
    assert not any(told["wide"] for told in found.values()), "wider than the window"


# The narrowest windows of the two wider layouts, and one in the middle of the third, which begins at 900.
@pytest.mark.parametrize("width", [761, 901, 1041])
def test_no_page_is_wider_than_the_window(tab: chromium.Browser, dsn: str, message: int, width: int) -> None:
    pages = ["/", "/queues/orders", f"/messages/{message}?body=1", "/queues/orders/policy", "/queues/orders/requeue"]
    pages += [f"/messages/{message}/requeue", "/queues/orders/messages?state=dead", "/messages"]
    found = checked(tab, dsn, [f"/pgqueue{page}" for page in pages], width=width, axe=False)
    assert [page for page, told in found.items() if told["wide"]] == []


@pytest.mark.parametrize(
    ("chosen", "zone", "offset"),
    [(None, "Europe/Helsinki", "+02:00"), ("America/New_York", "America/New_York", "-05:00")],
)
def test_moments_are_in_the_time_zone_of_airflow_or_else_of_the_browser(
    tab: chromium.Browser, address: str, dead: list[int], chosen: str | None, zone: str, offset: str
) -> None:
    tab.call("Emulation.setTimezoneOverride", timezoneId="Europe/Helsinki")
    try:
        tab.open(f"{address}/")
        # As Airflow keeps it.
        if chosen:
            tab.value(f"localStorage.setItem('timezone', JSON.stringify({chosen!r}))")
        for page in ("/", "/queues/orders", f"/messages/{dead[0]}"):
            tab.open(f"{address}{page}")
            moments = tab.value(
                "[...document.querySelectorAll('time')].map((one) => [one.dateTime, one.textContent, one.title])"
            )
            assert moments
            for iso, said, title in moments:
                assert datetime.fromisoformat(said) == datetime.fromisoformat(iso)
                assert datetime.fromisoformat(said).astimezone(ZoneInfo(zone)).isoformat(sep=" ") == said
                assert title == f"{iso[:19].replace('T', ' ')} UTC"
            assert f"Times are in {zone}" in tab.value("document.body.innerText")
            assert " UTC" not in tab.value("document.getElementById('live').innerText")
        # What is written into a form is of that zone, and comes back so.
        tab.open(f"{address}/queues/orders/requeue?since=2026-01-31T18:00")
        told = tab.value("document.getElementById('since').value")
        assert datetime.fromisoformat(f"{told}{offset}") == datetime(2026, 1, 31, 18, tzinfo=UTC)
        tab.value("document.getElementById('until').value = '2026-07-01T12:00:00'")
        tab.value("document.getElementById('count').click()")
        tab.until("location.search.includes('until=2026') && document.readyState === 'complete'")
        assert tab.until("document.getElementById('until')?.value") == "2026-07-01T12:00"
        assert tab.value("document.getElementById('since').value") == told
        until = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo(zone)).astimezone(UTC).isoformat()
        assert tab.value("document.querySelector('form[method=post] [name=until]').value") == until
        tab.value("localStorage.removeItem('timezone')")
    finally:
        tab.call("Emulation.setTimezoneOverride", timezoneId="")


def test_a_large_number_stays_in_its_tile(tab: chromium.Browser, address: str, message: int) -> None:
    large = """(() => {
      const all = [...document.querySelectorAll(".tile b")];
      for (const one of all) { one.textContent = "1,000,071+"; one.className = "long"; }
      return all.filter((one) => one.scrollWidth > one.clientWidth).length;
    })()"""
    for page in ("/", "/queues/orders"):
        tab.open(f"{address}{page}")
        for width in (360, 560, 800, 900, 1240):
            tab.resize(width=width, height=740)
            assert tab.value(large) == 0, width
    tab.resize(width=1240, height=900)


def test_a_screen_reader_gets_a_table_and_what_a_plot_shows(tab: chromium.Browser, address: str, message: int) -> None:
    tab.open(f"{address}/?sort=-dead")
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    tab.call("Accessibility.disable")
    heard: dict[str, list[str]] = {}
    for node in nodes:
        if not node["ignored"]:
            heard.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert heard["table"] == ["2 queues, sorted by dead"]
    assert heard["columnheader"] == ["Queue", "Depth", "Ready", "Leased", "Oldest", "Last hour", "Dead"]
    assert [name.split()[0] for name in heard["rowheader"]] == ["orders", "default"]
    assert heard["image"] == ["3 published and 1 finished in the last hour"]
    assert len(heard["cell"]) == 12
    assert {"main", "search", "status"} <= heard.keys()


@pytest.fixture
def dead(conn: Connection, queue: Callable[..., str]) -> list[int]:
    """Two dead messages of the queue `orders`, with the references a and b."""
    queue("orders", max_attempts=1)
    for reference in "ab":
        conn.execute("SELECT messages.publish('orders', '{}', reference => %s)", [reference])
    held = conn.execute("SELECT id, lock_token FROM messages.lease('orders', 2)").fetchall()
    conn.execute("SELECT messages.archive(%s, %s, 'failed', 'no stock')", [held[0][1], [row[0] for row in held]])
    return [row[0] for row in held]


_HERE = "document.activeElement.textContent.trim() || document.activeElement.id"
_SEEN = """(() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  return box.right > 0 && box.bottom > 0 && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
})()"""


def walk(tab: chromium.Browser, wanted: str) -> None:
    """Press Tab until something has the focus; each place on the way must be seen to have it."""
    for _ in range(80):
        tab.press("Tab")
        assert tab.value(_SEEN), f"nobody sees where the focus is: {tab.value('document.activeElement.outerHTML')}"
        if wanted in (tab.value(_HERE), tab.value("document.activeElement.id")):
            return
    pytest.fail(f"the keyboard does not reach {wanted!r}")


def test_a_message_is_requeued_with_the_keyboard_alone(
    tab: chromium.Browser, address: str, conn: Connection, dead: list[int]
) -> None:
    tab.open(f"{address}/")
    tab.press("Tab")
    assert tab.value(_HERE) == "Skip to the content"
    assert tab.value(_SEEN)
    tab.press("Enter")
    assert tab.value("document.activeElement.id") == "live"
    walk(tab, "orders")
    tab.press("Enter")
    tab.until("document.getElementById('requeue-all') !== null")
    walk(tab, "requeue-all")
    # A refresh leaves the focus there.
    tab.value(
        "new Promise((done) => { document.addEventListener('htmx:after:swap', done, { once: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }).then(() => true)"
    )
    assert tab.value("document.activeElement.id") == "requeue-all"
    tab.press("Enter")
    tab.until("document.getElementById('count') !== null")
    walk(tab, "reference")
    tab.write("a")
    walk(tab, "count")
    tab.press("Enter")
    tab.until("document.body?.innerText.includes('1 dead message with this reference is still open')")
    assert conn.execute("SELECT count(*) FROM messages.dead_message").fetchone() == (2,)
    walk(tab, "do")
    tab.press("Enter")
    tab.until("location.search.includes('done=requeue') && document.getElementById('says')?.textContent")
    assert tab.value("document.querySelector('[aria-live=polite]').textContent") == "Requeued 1 message."
    assert conn.execute("SELECT id FROM messages.dead_message").fetchall() == [(dead[1],)]


def test_many_messages_are_dismissed_in_steps_that_continue_by_themselves(
    tab: chromium.Browser, address: str, conn: Connection, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "resolutions_at_once", 1)
    tab.open(f"{address}/queues/orders/dismiss")
    tab.value("document.getElementById('reason').value = 'old'")
    tab.value("document.getElementById('do').click()")
    told = tab.until("document.getElementById('says')?.textContent")
    assert told == "Dismissed 2 messages."
    found = conn.execute("SELECT acting_user, affected FROM messages.audit WHERE action = 'dismiss_dead'").fetchall()
    assert found == [("ann", 1), ("ann", 1)]
