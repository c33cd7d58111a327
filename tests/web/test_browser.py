"""The page in a real browser: inside a frame, as Airflow shows it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse

from airflow_provider_pgqueue.core.connection import connect as connect_to
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
    "\u202eretsinis\u202c \u2066isolate\u2069 \u200bhidden \u0007bell",
    "javascript:document.documentElement.dataset.broken=4",
    '</pre></textarea></title><svg onload="document.documentElement.dataset.broken = 5">',
)


def judged(dsn: str, paths: list[str]) -> dict[str, Any]:
    """Return what a script says that opens each page in a frame, as Airflow does, and looks around in it."""
    app = FastAPI()
    app.add_api_route(
        "/judge", lambda: HTMLResponse((HERE / "judge.html").read_text().replace("PATHS", json.dumps(paths)))
    )
    app.add_api_route("/judge.js", lambda: FileResponse(HERE / "judge.js"))
    app.add_api_route("/axe.js", lambda: FileResponse(HERE / "vendor" / "axe.js"))
    app.mount("/pgqueue", make_app(lambda: connect_to(dsn), lambda: Person("ann", True), secret=b"a secret"))
    with served(app) as address:
        page = chromium.document(f"{address}/judge")
    found = re.search(r'<pre id="judgement">(.*?)</pre>', page, re.DOTALL)
    assert found, page
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told


@pytest.fixture
def message(conn: Connection, queue: Callable[..., str]) -> int:
    """A dead message in which strangers wrote whatever they could, and others that wait and are leased."""
    queue("orders", max_attempts=1)
    text = " ".join(HOSTILE)
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
    conn.execute("SELECT messages.audited(%s, 'pause_queue', '{\"queue_name\": \"orders\"}')", [text[:250]])
    conn.execute("SELECT messages.upkeep()")
    id_: int = row[0]
    return id_


def test_what_strangers_wrote_is_text(dsn: str, message: int) -> None:
    pages = ["/", "/queues/orders", f"/messages/{message}?body=1", f"/messages/{message}/dismiss"]
    found = judged(dsn, [f"/pgqueue{page}" for page in pages])
    for page in pages:
        told = found[f"/pgqueue{page}"]
        assert told["broken"] is None
        assert told["foreign"] == [], "an element that no template of ours has"
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u0007]", told["text"])
        assert told["violations"] == [], "the policy was needed"
    assert HOSTILE[0] in found[f"/pgqueue{pages[2]}"]["text"]


def test_everybody_can_use_the_page(dsn: str, message: int) -> None:
    pages = ["/", "/queues/orders", f"/messages/{message}", "/queues/orders/policy", "/queues/unknown"]
    found = judged(dsn, [f"/pgqueue{page}" for page in pages])
    assert {page: told["axe"] for page, told in found.items()} == {page: [] for page in found}
    assert min(told["checked"] for told in found.values()) > 10
    # A refresh leaves the keyboard where it was, and draws no plot again that did not change.
    assert found["/pgqueue/"]["focus"] == ["by-dead", "by-dead"]
    assert found["/pgqueue/"]["refreshed"] is True
    assert found["/pgqueue/queues/orders"]["drawn"] > 0
    assert not any(told["wide"] for told in found.values()), "wider than the window"
