"""Puts the page together: the person is known before any route runs, and every error is a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from airflow_provider_pgqueue.core import errors
from airflow_provider_pgqueue.core.errors import PgQueueError, text_without_values, translate
from airflow_provider_pgqueue.web import actions, message, messages, queue, queues, run
from airflow_provider_pgqueue.web.guard import with_headers
from airflow_provider_pgqueue.web.html import error_page
from airflow_provider_pgqueue.web.request import Connect, Links, Person, Site, person_of

_FOLDER: Final = Path(__file__).parent
_AT_ONCE: Final = 8
_PATIENCE: Final = 10.0  # seconds
_UNTOLD: Final = "Whoever may change the queues sees the reason here: it names the server and the login."
_STATUS: Final[dict[type[PgQueueError], int]] = {
    errors.QueueNotFound: 404,
    errors.PermissionDenied: 403,
    errors.ConnectionFailed: 503,
    errors.SchemaError: 503,
    errors.InUse: 503,
    errors.LeaseLost: 409,
    errors.QueuePaused: 409,
}


def make_app(
    connect: Connect, who: Callable[..., Person], *, secret: bytes, links: Links | None = None, base_url: str = ""
) -> FastAPI:
    """Return the page of the queues in one database, to be served alone or mounted under any path.

    :param connect: opens a connection, as a context manager that closes it.
    :param who: a dependency of FastAPI that returns who is asking, or raises HTTPException 401 or 403.
    :param secret: signs the forms; the same in all processes that serve the page.
    :param links: where names of DAG runs and tasks lead.
    :param base_url: the address at which browsers reach the server, if they do through a proxy.
    """
    # FastAPI's own pages load scripts from other hosts, and its own redirects lead to the host that a proxy asked for.
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(_knowing(who))],
    )
    app.state.site = Site(connect, secret, links or Links(), origin=urlsplit(base_url).netloc)
    app.middleware("http")(_room())
    app.middleware("http")(with_headers)
    app.add_middleware(_WholePaths)
    for part in (queues, queue, message, messages, run, actions):
        app.include_router(part.router)
    for folder in ("static", "vendor"):
        app.mount(f"/{folder}", StaticFiles(directory=_FOLDER / folder), name=folder)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misspelt)
    app.add_exception_handler(PgQueueError, _failed)
    app.add_exception_handler(psycopg.Error, _failed)
    return app


class _WholePaths:
    """Gives every request its whole path, which begins with `root_path`, as ASGI has it and Starlette's routes need it.

    A proxy that strips the path of `[api] base_url` leaves a path without it. Headers such as X-Forwarded-Prefix are
    not believed: anybody can send them.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, *channels: Any) -> None:
        if scope["type"] == "http":
            scope = scope | {"path": _whole(scope)}
        await self._app(scope, *channels)


def _whole(scope: Any) -> str:
    root, path = scope.get("root_path", "").rstrip("/"), str(scope["path"])
    if path == root:
        return path + "/"
    if not path.startswith(f"{root}/"):
        # The `root_path` of a mounted application includes the place where it is mounted, and so does the path.
        return str(scope.get("app_root_path", root).rstrip("/")) + path
    return path


def _room() -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    """Return what lets few requests in at once: each holds a thread of a pool that all of Airflow's API shares."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def enter(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if "\0" in request.url.path or "\0" in request.scope["path"]:
            return error_page(request, 404, "There is no such page")
        try:
            await asyncio.wait_for(room.acquire(), _PATIENCE)
        except TimeoutError:
            return error_page(request, 503, "Many ask for this page, and the database is slow", "Try again later.")
        try:
            return await call_next(request)
        finally:
            room.release()

    return enter


def _knowing(who: Callable[..., Person]) -> Callable[..., None]:
    def know(request: Request, person: Person = Depends(who)) -> None:
        request.state.person = person

    return know


def _refused(request: Request, error: Any) -> Response:
    return error_page(request, error.status_code, str(error.detail))


def _misspelt(request: Request, error: Any) -> Response:
    # The page names the parameter only, and not what was given.
    wrong = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
    return error_page(request, 422, f"The address of this page is not valid: {wrong}")


def _failed(request: Request, error: Any) -> Response:
    known = translate(error)
    if isinstance(known, errors.ConnectionFailed) and not person_of(request).may_act and _is_of_libpq(known, error):
        known = errors.ConnectionFailed("the database of the queues cannot be reached", _UNTOLD)
    return error_page(request, *_told(known))


def _is_of_libpq(known: PgQueueError, error: Any) -> bool:
    """Return whether an error comes from libpq, which names the server, the database and the login."""
    driver = error if isinstance(error, psycopg.Error) else known.__cause__
    return isinstance(driver, psycopg.Error) and driver.sqlstate is None


def _told(error: Exception) -> tuple[int, str, str | None]:
    """Return a status, what is wrong, and the fix."""
    if not isinstance(error, PgQueueError):
        return 500, text_without_values(error), None
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
    return status, error.problem.rstrip("."), error.fix
