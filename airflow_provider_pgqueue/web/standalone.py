"""The page without Airflow: on the loopback, for the users who have its address.

A browser gives a cookie to all ports of a host, so the secret is a part of the path, which it gives to one alone.
"""

from __future__ import annotations

import getpass
import hmac
import secrets
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse

from airflow_provider_pgqueue.web.app import make_app
from airflow_provider_pgqueue.web.guard import HEADERS
from airflow_provider_pgqueue.web.request import Connect, Person

_HOSTS: Final = ("127.0.0.1", "localhost")
_READ_ONLY: Final = "pgqueue web was started with --read-only: you may look at the queues, and not change them."


def make_alone(connect: Connect, token: str, *, may_act: bool, base_url: str = "") -> FastAPI:
    """Return the page, below the path `/TOKEN/`, for the user of this process.

    :param base_url: the address of a proxy in front of it. Whoever serves the page gives its path as `root_path`.
    """
    person = Person(f"pgqueue web ({_user()})", may_act, _READ_ONLY)
    app = make_app(connect, lambda: person, secret=secrets.token_bytes(32), base_url=base_url)
    app.add_middleware(_Below, token=token, hosts={*_HOSTS, urlsplit(base_url).hostname or _HOSTS[0]})
    return app


class _Below:
    """Admits requests with the token, and gives others no information."""

    def __init__(self, app: Any, token: str, hosts: set[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Any, *channels: Any) -> None:
        root = scope.get("root_path", "").rstrip("/")
        given = scope["path"].removeprefix(root).removeprefix("/").partition("/")[0]
        app = self._app
        # Another site can point a name of its own at this machine, and then the browser sends that name as the host.
        if Request(scope).url.hostname not in self._hosts:
            app = _refusal(403, "This page is for 127.0.0.1 and localhost. Behind a proxy it needs --base-url.")
        elif not hmac.compare_digest(given.encode(), self._token.encode()):
            app = _refusal(404, "Open the address that pgqueue web printed: all of its path is needed.")
        await app(scope | {"root_path": f"{root}/{given}"}, *channels)


def _refusal(status: int, why: str) -> PlainTextResponse:
    return PlainTextResponse(f"{why}\n", status, {**HEADERS, "Cache-Control": "no-store"})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
