"""One queue: its history, who works on it, what died and of which cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from fastapi import APIRouter, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.web.actions import said_of
from airflow_provider_pgqueue.web.fields import choices
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.plots import Plot, plots_of
from airflow_provider_pgqueue.web.policy import EMPTY
from airflow_provider_pgqueue.web.queues import is_behind, needs
from airflow_provider_pgqueue.web.request import Site, person_of, site_of
from airflow_provider_pgqueue.web.rights import Rights
from airflow_provider_pgqueue.web.section import Refused, part, rows_of

router = APIRouter()
Connection = psycopg.Connection[Any]
_SPANS: Final = {
    "hour": (timedelta(hours=1), timedelta(minutes=1)),
    "day": (timedelta(days=1), timedelta(minutes=15)),
    "week": (timedelta(days=7), timedelta(hours=2)),
}
_STEPS_OF_CAUSES: Final = {"hour": timedelta(minutes=2), "day": timedelta(hours=1), "week": timedelta(hours=4)}
_ORDERS: Final = {"died": "died", "waiting": "waiting", "last": "last_at"}
_CAUSES: Final = 50
_SLOWER: Final = 15.0  # seconds: numbers per minute need no query every four seconds


@router.get("/queues/{name}")
def queue(request: Request, name: str) -> Response:
    """All that is known of one queue."""
    site, bodies = site_of(request), person_of(request).may_act
    chosen = choices(request.query_params, {"span": tuple(_SPANS), "by": tuple(_ORDERS)})
    span, by = chosen["span"], chosen["by"]
    found = site.shared.get(("queue", name, span, bodies), lambda: _find(site, name, span, bodies))
    if not isinstance(found["causes"], Refused):
        found = found | {"causes": sorted(found["causes"], key=lambda cause: cause[_ORDERS[by]] or 0, reverse=True)}
    return page(request, "queue.html", span=span, by=by, spans=list(_SPANS), done=said_of(request), **found)


def _find(site: Site, name: str, span: str, bodies: bool) -> dict[str, Any]:
    length, step = _SPANS[span]
    since = datetime.now(UTC) - length
    with site.reading(bodies=bodies) as conn:
        # First, because it says that there is no such queue.
        (status,) = run(conn, verbs.status(name))

        def past() -> tuple[list[Plot], Row]:
            rows = run(conn, verbs.queue_history(name, since=since, step=step))
            return plots_of(rows, step), _sums_of(rows, step)

        def causes() -> list[Row]:
            found = run(conn, verbs.dead_trend(name, since=since, step=_STEPS_OF_CAUSES[span], max_causes=_CAUSES))
            return _with_older(conn, name, status.dead, found)

        return {
            "at": datetime.now(UTC),
            "queue": status,
            "needs": needs(status),
            "rights": Rights.of(conn, name),
            "past": part(conn, lambda: site.shared.get(("past", name, span), past, seconds=_SLOWER)),
            "causes": part(conn, lambda: site.shared.get(("dead", name, span, bodies), causes, seconds=_SLOWER)),
            "workers": part(conn, lambda: run(conn, verbs.workers(name))[:50]),
            "dispatches": part(conn, lambda: rows_of(conn, "dispatches_of_queue", queue_name=name)),
            "policy": part(conn, lambda: rows_of(conn, "policy_of_queue", queue_name=name)[0]),
            "absent": EMPTY,
            "listeners": part(conn, lambda: rows_of(conn, "listeners")),
            "audit": part(conn, lambda: run(conn, verbs.audit_log(name, max_entries=10))),
        }


def _with_older(conn: Connection, name: str, dead: int, found: list[Row]) -> list[Row]:
    """Return the causes of the time, and if none of its messages is left, also those of messages that died before."""
    if not dead or any(cause["waiting"] for cause in found):
        return found
    older = part(conn, lambda: run(conn, verbs.dead_causes(name))[:_CAUSES])
    if isinstance(older, Refused):
        return found
    return found + [
        {
            "result": cause.result,
            "fingerprint": cause.fingerprint,
            "pattern": cause.example,
            "died": None,
            "waiting": cause.waiting,
            "trend": None,
            "first_at": cause.first_at,
            "last_at": cause.last_at,
            "series": [],
        }
        for cause in older
        if cause.fingerprint not in {known["fingerprint"] for known in found}
    ]


def _sums_of(rows: list[Row], step: timedelta) -> Row:
    """Return what arrived and was archived in the time, as far as the history knows it: None where it does not."""
    names = ("arrivals", "success", "failed", "rejected", "lock_expired", "expired")
    known = [row for row in rows if row["arrivals"] is not None]
    found: Row = {name: sum(row[name] for row in known) if known else None for name in names}
    until = known[-1]["bucket_at"] + step if known else None
    dead = sum(found[name] for name in names[2:]) if known else None
    return found | {"dead": dead, "known_until": until, "behind": until is not None and is_behind(until)}
