"""Finding messages: of a queue or of all, by state, id, reference and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from fastapi import APIRouter, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.quantity import size
from airflow_provider_pgqueue.web import fields
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.request import Site, person_of, site_of
from airflow_provider_pgqueue.web.rights import Rights
from airflow_provider_pgqueue.web.section import Refused, part, rows_of

router = APIRouter()
STATES: Final = ("any", "ready", "delayed", "leased", "done", "dead")
_PER_PAGE: Final = 50
_PREVIEW: Final = 160  # letters of a body
_LARGE: Final = 20_000  # bytes: of a larger body there is no preview
_FIELDS: Final = ("q", "since", "until", "fingerprint", "after_id", "after_place")


@router.get("/messages")
def of_all_queues(request: Request) -> Response:
    """The messages of all queues."""
    return _page(request, None)


@router.get("/queues/{name}/messages")
def of_queue(request: Request, name: str) -> Response:
    """The messages of one queue."""
    return _page(request, name)


def _page(request: Request, name: str | None) -> Response:
    site, person = site_of(request), person_of(request)
    asked = {field: request.query_params.get(field, "").strip() for field in _FIELDS}
    state = fields.choices(request.query_params, {"state": STATES})["state"]
    wanted = _wanted(asked, state)
    key = ("messages", name, *wanted.items(), person.may_act)
    found = site.shared.get(key, lambda: _find(site, name, wanted, person.may_act))
    shown = asked | {one: (wanted[one] or "")[:19] for one in ("since", "until")}
    return page(request, "messages.html", queue_name=name, state=state, states=STATES, asked=shown, **found)


def _wanted(asked: Mapping[str, str], state: str) -> dict[str, Any]:
    """Return the arguments of search_messages; InvalidArgument for what no column takes."""
    times = {name: fields.moment(asked, name) for name in ("since", "until", "after_place")}
    return {
        "state": None if state == "any" else state,
        "reference": fields.text(asked, "q"),
        "fingerprint": fields.text(asked, "fingerprint"),
        "after_id": fields.whole_number(asked["after_id"]),
        **times,
    }


def _find(site: Site, name: str | None, wanted: Mapping[str, Any], bodies: bool) -> dict[str, Any]:
    with site.reading(bodies=bodies) as conn:
        queue = run(conn, verbs.status(name))[0] if name else None
        rows = part(conn, lambda: _rows(conn, name, wanted))
        return {
            "queue": queue,
            "rights": Rights.of(conn, name) if name else Rights(),
            "rows": rows,
            "bodies": {} if isinstance(rows, Refused) or not bodies else _bodies(conn, rows),
            "more": not isinstance(rows, Refused) and len(rows) >= _PER_PAGE,
            "further": part(conn, lambda: _further(conn, wanted, rows)),
        }


def _rows(conn: psycopg.Connection[Any], name: str | None, wanted: Mapping[str, Any]) -> list[Row]:
    by_id = []
    if (id_ := fields.whole_number(wanted["reference"] or "")) and not wanted["after_id"]:
        # A user with an id may not know the queue.
        by_id = run(conn, verbs.search_messages(message_id=id_))
    rows = run(conn, verbs.search_messages(name, max_messages=_PER_PAGE, **wanted))
    return by_id + [row for row in rows if row["id"] not in {one["id"] for one in by_id}]


def _further(conn: psycopg.Connection[Any], wanted: Mapping[str, Any], rows: list[Row] | Refused) -> int | None:
    """Return the id from which to continue if a list read as many rows as it may before its page was full."""
    found = any(wanted[name] for name in ("reference", "fingerprint", "since", "until"))
    if isinstance(rows, Refused) or len(rows) >= _PER_PAGE or wanted["state"] != "done" or found:
        return None
    last = rows_of(conn, "scanned_back_to", after_id=wanted["after_id"])
    return last[0]["id"] if last else None


def _bodies(conn: psycopg.Connection[Any], rows: list[Row]) -> dict[int, str]:
    """Return how bodies begin; nothing if the login of the connection may not read them."""
    given = {"ids": [row["id"] for row in rows], "longest": _PREVIEW, "largest": _LARGE}
    found = part(conn, lambda: rows_of(conn, "bodies", **given))
    if isinstance(found, Refused):
        return {}
    return {row["id"]: " ".join((row["body"] or size(row["bytes"])).split()) for row in found}
