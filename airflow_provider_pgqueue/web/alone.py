"""The page without Airflow: on the loopback, for whoever has its address."""

from __future__ import annotations

import getpass
import hmac
import secrets
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from airflow_provider_pgqueue.web.app import make_app
from airflow_provider_pgqueue.web.html import back_to
from airflow_provider_pgqueue.web.site import Connect, Person

_HOSTS: Final = ("127.0.0.1", "localhost")
_READ_ONLY: Final = "pgqueue web was started with --read-only: you may look at the queues, and not change them."
_REFUSED: Final = "Open the address that pgqueue web printed: it has the token."


def make_alone(connect: Connect, token: str, *, may_act: bool, base_url: str = "") -> FastAPI:
    """Return the page for whoever came in through `/enter/TOKEN`, as the user of this process.

    :param base_url: the address of a proxy in front of it. Whoever serves the page gives its path as `root_path`.
    """
    name = f"pgqueue web ({_user()})"
    outside = urlsplit(base_url)
    hosts = {*_HOSTS, outside.hostname or _HOSTS[0]}

    def who(request: Request) -> Person:
        _check_host(request, hosts)
        if not hmac.compare_digest(request.cookies.get(_cookie(request), "").encode(), token.encode()):
            raise HTTPException(401, _REFUSED)
        return Person(name, may_act, _READ_ONLY)

    def enter(request: Request) -> Response:
        _check_host(request, hosts)
        if not hmac.compare_digest(request.path_params["given"].encode(), token.encode()):
            raise HTTPException(401, _REFUSED)
        response = RedirectResponse(back_to(request, "/"), 303, headers={"Cache-Control": "no-store"})
        place, secure = back_to(request, "") or "/", outside.scheme == "https"
        response.set_cookie(_cookie(request), token, path=place, secure=secure, httponly=True, samesite="strict")
        return response

    app = make_app(connect, who, secret=secrets.token_bytes(32), base_url=base_url)
    # Not one of FastAPI's routes: those ask first who it is.
    app.add_route("/enter/{given}", enter)
    return app


def _check_host(request: Request, hosts: Collection[str]) -> None:
    # A page elsewhere can give this machine a name of its own, but not the name that it is asked by.
    if request.url.hostname not in hosts:
        raise HTTPException(403, "This page is for 127.0.0.1 and localhost. Behind a proxy it needs --base-url.")


def _cookie(request: Request) -> str:
    # A browser gives the cookies of one port to all others.
    return f"pgqueue_{request.url.port or 80}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
