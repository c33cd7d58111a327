"""One message: its life from publish to the end, and its body for users who may see it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core.message import TEXTS, Row
from airflow_provider_pgqueue.web.actions import Id, life_of, said_of
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.request import Site, person_of, site_of
from airflow_provider_pgqueue.web.rights import Rights
from airflow_provider_pgqueue.web.section import Refused, part, rows_of

router = APIRouter()

_LONGEST: Final = 200_000  # letters of a body
_FACTS: Final = (
    "priority", "attempts", "requeues", *TEXTS, "created_at", "visible_at", "expires_at", "leased_at",
    "archived_at", "fingerprint",
)  # fmt: skip


@router.get("/messages/{id}")
def message(request: Request, id: Id) -> Response:
    """What is recorded of a message; with `body=1` also its body."""
    site, person = site_of(request), person_of(request)
    wants_body = request.query_params.get("body") == "1"
    if wants_body and not person.may_act:
        raise HTTPException(403, person.lacks)
    found = site.shared.get(("message", id, person.may_act), lambda: _find(site, id, person.may_act))
    return page(
        request,
        "message.html",
        id=id,
        facts=_FACTS,
        inside=_inside(site, id) if person.may_act else None,
        wants_body=wants_body,
        longest=_LONGEST,
        done=said_of(request),
        **found,
    )


def _find(site: Site, id: int, bodies: bool) -> dict[str, Any]:
    with site.reading(bodies=bodies) as conn:
        life = life_of(conn, id)
        waiting = rows_of(conn, "unfinished_message", id=id)
        finished = [] if waiting else rows_of(conn, "finished_message", id=id)
        rights = Rights.of(conn, life[0]["queue_name"])
    return {
        "life": life,
        "waiting": waiting[0] if waiting else None,
        "finished": finished[0] if finished else None,
        "queue_name": life[0]["queue_name"],
        "rights": rights,
    }


def _inside(site: Site, id: int) -> Row | Refused | None:
    with site.reading() as conn:
        rows = part(conn, lambda: rows_of(conn, "bodies", ids=[id], longest=_LONGEST, largest=2**30))
    return rows if isinstance(rows, Refused) else next(iter(rows), None)
