"""The tab *Messages* inside Airflow's own pages, in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.e2e.test_dispatch import create, dispatch, dispatches, ended
from tools import chromium
from tools.airflow import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.browser]

# The document of the page in its frame, which is there some time after Airflow's page.
_INSIDE = "document.querySelector('iframe')?.contentDocument"


@pytest.fixture
def tab() -> Iterator[chromium.Browser]:
    with chromium.browser() as tab:
        tab.resize(width=1280, height=900)
        yield tab


def follow(tab: chromium.Browser, link: str) -> None:
    """Click a link as soon as it is there."""
    tab.until(f"(() => {{ const link = {link}; link?.click(); return !!link }})()")


def go(tab: chromium.Browser, path: str) -> None:
    """Go to a page of Airflow as its own links do, which load nothing anew: that takes Chromium seconds each time."""
    tab.value(f"history.pushState(null, '', {json.dumps(path)}); dispatchEvent(new PopStateEvent('popstate'))")


def link_of_the_tab(path: str) -> str:
    """Return an expression for the tab on the page at a path, which follows the page before only after some time."""
    tabs = f"a[href*='messages-'][href^={json.dumps(path)}]"
    return f"[...document.querySelectorAll({json.dumps(tabs)})].find((one) => one.innerText.trim() === 'Messages')"


def inside(text: object, path: str) -> str:
    """Return an expression for a link with this text in the frame, once the frame has loaded a path that ends so."""
    there = f"{_INSIDE}?.readyState === 'complete' && {_INSIDE}.location.pathname.endsWith({json.dumps(path)})"
    links = f"({there} ? [...{_INSIDE}.querySelectorAll('a')] : [])"
    return f"{links}.find((one) => one.innerText.trim() === {json.dumps(str(text))})"


def test_a_run_leads_to_its_message_and_the_message_to_its_run(
    stack: Stack, queue_conn: psycopg.Connection[Any], tab: chromium.Browser
) -> None:
    (id_,) = create(queue_conn, "e2e_tab", [{}])
    dispatch(stack, "e2e_tab")
    ended(queue_conn, "e2e_tab", "success")
    ((run_id, _),) = dispatches(queue_conn, "e2e_tab")
    of_run = f"/dags/e2e_handle/runs/{quote(run_id, safe='')}"
    named = f"e2e_handle · {run_id}"
    tabs = {
        "/dags/e2e_handle": inside(named, "/pgqueue/dags/e2e_handle"),
        of_run: inside(id_, f"/pgqueue/runs/e2e_handle/{run_id}"),
        f"{of_run}/tasks/work": inside(id_, f"/{run_id}"),
    }
    # The login, which Airflow 3.1 forgets the address over.
    tab.open(stack.url)
    tab.until("!!document.querySelector('a[href$=\"/plugin/queues\"]')")
    for path, link in tabs.items():
        go(tab, path)
        follow(tab, link_of_the_tab(path))
        assert tab.until(f"!!({link})")
    follow(tab, tabs[f"{of_run}/tasks/work"])
    follow(tab, inside(named, f"/pgqueue/messages/{id_}"))
    assert tab.until(f"decodeURIComponent(location.pathname).endsWith({json.dumps(f'/runs/{run_id}')})")
