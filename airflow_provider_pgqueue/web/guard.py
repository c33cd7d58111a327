"""Keeps other sites out: what a browser may load and frame, and that a change was asked for on this page."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID, uuid4

from fastapi import HTTPException, Request
from starlette.responses import Response

from airflow_provider_pgqueue.web.request import path_of, person_of, site_of

log = logging.getLogger(__name__)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
}
_LARGEST_FORM: Final = 2 * 1024 * 1024
_HOURS: Final = 12
_MINUTE: Final = 60


async def with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Return the answer with the headers of safety, also of errors and files, and never a traceback."""
    try:
        response = await call_next(request)
    except Exception:
        log.exception("the page of the queues failed")
        response = Response("The page failed; the log of the server says why.", 500, media_type="text/plain")
    response.headers.update(HEADERS)
    # A file may be kept by a browser that asks whether it changed; of a page nothing may.
    response.headers.setdefault("Cache-Control", "no-cache" if "etag" in response.headers else "no-store")
    return response


def token_for(request: Request) -> str:
    """Return a token for one form of this person, which can be used once, within some hours."""
    until, once = int(time.time()) + _HOURS * 3600, uuid4().hex
    return f"{until}.{once}.{_sign(request, until, once)}"


def _sign(request: Request, until: int, what: str) -> str:
    said = f"{until} {what} {person_of(request).name}".encode()
    return hmac.new(site_of(request).secret, said, "sha256").hexdigest()


def vouched(request: Request, path: str, **said: Any) -> dict[str, Any]:
    """Return what came of an action as parameters of the page at `path`, which shows it to this person for a minute."""
    until = int(time.time()) + _MINUTE
    return {**said, "until": until, "by": _sign(request, until, urlencode({"path": path, **said}))}


def is_vouched(request: Request) -> bool:
    """Return whether an action led to this address: anyone can write an address, but only this page can sign it."""
    said = dict(request.query_params)
    until, signature = said.pop("until", ""), said.pop("by", "")
    if not until.isdecimal() or len(until) > 11 or int(until) < time.time():
        return False
    expected = _sign(request, int(until), urlencode({"path": path_of(request), **said}))
    return hmac.compare_digest(signature.encode(), expected.encode())


def _check_same_origin(request: Request) -> None:
    """Refuse a change that another site asked for: 403."""
    fetched_from, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if fetched_from is not None:
        # The browser vouches for it, also behind a proxy that changes Host.
        same = fetched_from == "same-origin"
    else:
        # Over plain HTTP it does not, except for this machine.
        asked = {request.headers.get("host"), site_of(request).origin} - {None, ""}
        same = origin is not None and urlsplit(origin).netloc in asked
    if not same:
        raise HTTPException(403, "This change was not asked for on this page, so nothing was done.")


async def checked_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that this page gave to this person, with `request`, which is another in each form.

    403 for any other.
    """
    _check_same_origin(request)
    if not person_of(request).may_act:
        raise HTTPException(403, person_of(request).lacks)
    fields = await _fields(request)
    until, _, rest = fields.pop("token", "").partition(".")
    once, _, signature = rest.partition(".")
    good = until.isdecimal() and len(until) < 12 and int(until) > time.time()
    if not good or not hmac.compare_digest(signature.encode(), _sign(request, int(until), once).encode()):
        raise HTTPException(403, "This form is too old. Go back, load the page again, and repeat what you did.")
    return fields | {"request": str(UUID(once))}


async def _fields(request: Request) -> dict[str, str]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise HTTPException(413, "The form is larger than 2 MB. Publish such a message from a program.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"))
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
