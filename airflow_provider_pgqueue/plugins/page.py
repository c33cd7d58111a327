"""The page of the queues inside Airflow: who may see it, and which connection it uses."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf

if TYPE_CHECKING:
    import psycopg
    from fastapi import FastAPI

    from airflow_provider_pgqueue.web import Task

PREFIX: Final = "/pgqueue"


def views() -> list[dict[str, Any]]:
    """Return where Airflow shows the page: in its navigation, and as a tab of each DAG, run and task instance."""
    root = f"{base_path()}{PREFIX}"
    icons = {"icon": f"{root}/static/queues.svg", "icon_dark_mode": f"{root}/static/queues-dark.svg"}
    # Airflow 3.1 puts the names in as they are: a run, which may have a slash, comes last.
    tabs = {
        "dag": "dags/{DAG_ID}",
        "dag_run": "runs/{DAG_ID}/{RUN_ID}",
        "task_instance": "tasks/{DAG_ID}/{TASK_ID}/{MAP_INDEX}/{RUN_ID}",
    }
    return [
        {
            "name": "Queues",
            "href": f"{root}/",
            "destination": "nav",
            "url_route": "queues",
            "nav_top_level": True,
            **icons,
        },
        *(
            {
                "name": "Messages",
                "href": f"{root}/{path}",
                "destination": place,
                "url_route": f"messages-{place}",
                **icons,
            }
            for place, path in tabs.items()
        ),
    ]


class Page:
    """An application that is made when it is first asked: Airflow imports its plugins in every process."""

    def __init__(self) -> None:
        self._app: FastAPI | None = None

    async def __call__(self, *asgi: Any) -> None:
        if self._app is None:
            self._app = _make_page()
        await self._app(*asgi)


def _make_page() -> FastAPI:
    """Return the page, behind Airflow's own login."""
    from airflow.api_fastapi.auth.tokens import get_signing_key

    from airflow_provider_pgqueue.web import Links, make_app

    secret = hmac.new(get_signing_key("api", "secret_key").encode(), b"pgqueue", hashlib.sha256).digest()
    links = Links(run=_run_address, task=_task_address, login=login_address)
    return make_app(_connect, _who(), secret=secret, links=links, base_url=_base_url())


def connection_id() -> str:
    """Return the id of the connection whose queues are shown."""
    return str(conf.get("pgqueue", "conn_id", fallback="pgqueue_default"))


@contextmanager
def _connect() -> Iterator[psycopg.Connection[Any]]:
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    from airflow_provider_pgqueue.core import connection
    from airflow_provider_pgqueue.core.errors import ConnectionFailed
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    try:
        arguments = {"connect_timeout": 5} | PgQueueHook(connection_id()).connection_arguments()
    except AirflowNotFoundException:
        raise ConnectionFailed(
            f"Airflow has no connection {connection_id()!r}",
            "Define it, or name another one: [pgqueue] conn_id in airflow.cfg, or AIRFLOW__PGQUEUE__CONN_ID.",
        ) from None
    arguments["application_name"] = "pgqueue:page"
    with connection.connect(**arguments) as conn:
        yield conn


def _who() -> Any:
    """Return the dependency that says who is asking.

    Who may see what runs in Airflow (its view of jobs, which a viewer has) reads; who may edit the connection acts.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException

    from airflow_provider_pgqueue.web import Person

    def who(user: Any = Depends(get_user)) -> Person:
        manager = get_auth_manager()
        if not manager.is_authorized_view(access_view=AccessView.JOBS, user=user):
            raise HTTPException(403, "Your role in Airflow may not see the queues: it needs to see jobs.")
        details = ConnectionDetails(conn_id=connection_id(), team_name=_team())
        may_act = manager.is_authorized_connection(method="PUT", details=details, user=user)
        return Person(
            user.get_name(),
            may_act,
            "You may look at the queues. To change them, and to see headers, bodies and outputs, you need the right to"
            f" edit the connection {details.conn_id} in Airflow.",
        )

    return who


def _team() -> str | None:
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    from airflow.models import Connection

    name: str | None = Connection.get_team_name(connection_id())
    return name


def base_path() -> str:
    """Return the path under which Airflow is reached, without a slash at its end."""
    return urlsplit(_base_url()).path.rstrip("/")


def _base_url() -> str:
    return conf.get("api", "base_url", fallback="") or ""


def _run_address(dag_id: str, run_id: str) -> str:
    """Return the address of a DAG run."""
    return f"{base_path()}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def _task_address(task: Task) -> str:
    """Return the address of a try of a task instance."""
    mapped = "" if task.map_index == -1 else f"/mapped/{task.map_index}"
    run = _run_address(task.dag_id, task.run_id)
    return f"{run}/tasks/{quote(task.task_id, safe='')}{mapped}?try_number={task.try_number}"


def login_address(path: str) -> str:
    """Return the address of Airflow's login that leads back to a path: it knows the login of each auth manager."""
    return f"{base_path()}/api/v2/auth/login?{urlencode({'next': path})}"
