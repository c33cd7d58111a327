"""The messages of a DAG, of a run of it or of a task: the messages that it has, and the messages that it published.

Airflow shows these pages as a tab of the DAG, the run and the task instance.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.request import Site, person_of, site_of
from airflow_provider_pgqueue.web.section import Refused, part, rows_of

router = APIRouter()

_MOST: Final = 50


@router.get("/dags/{dag_id}")
def dag(request: Request, dag_id: str) -> Response:
    """The runs of a DAG that have messages, or had some."""
    return _page(request, dag_id)


@router.get("/runs/{dag_id}/{run_id:path}")
def dag_run(request: Request, dag_id: str, run_id: str) -> Response:
    """The messages of a run, and those that its tasks published."""
    return _page(request, dag_id, run_id, published=f"{dag_id}/{run_id}/")


@router.get("/tasks/{dag_id}/{task_id}/{map_index}/{run_id:path}")
def task_instance(request: Request, dag_id: str, task_id: str, map_index: str, run_id: str) -> Response:
    """The messages of the run, and those that this task published."""
    # Airflow leaves its own placeholder where a task is not mapped.
    place = map_index if map_index.isdecimal() else "-1"
    return _page(request, dag_id, run_id, task_id=task_id, published=f"{dag_id}/{run_id}/{task_id}/{place}")


def _page(
    request: Request,
    dag_id: str,
    run_id: str | None = None,
    *,
    task_id: str | None = None,
    published: str | None = None,
) -> Response:
    site, bodies = site_of(request), person_of(request).may_act
    key = ("run", dag_id, run_id, published, bodies)
    found = site.shared.get(key, lambda: _find(site, dag_id, run_id, published, bodies))
    return page(request, "run.html", dag_id=dag_id, run_id=run_id, task_id=task_id, most=_MOST, **found)


def _find(site: Site, dag_id: str, run_id: str | None, published: str | None, bodies: bool) -> dict[str, Any]:
    with site.reading(bodies=bodies) as conn:

        def by_tasks() -> list[Row]:
            if published is None:
                return []
            # What follows a slash; of a single task, nothing does.
            beyond = f"{published[:-1]}0" if published.endswith("/") else f"{published}\x01"
            return rows_of(conn, "published_by", first=published, beyond=beyond)[:_MOST]

        given: list[Row] | Refused = part(
            conn, lambda: rows_of(conn, "dispatches_of_run", dag_id=dag_id, run_id=run_id)
        )
        return {"given": given, "published": part(conn, by_tasks)}
