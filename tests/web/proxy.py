"""A reverse proxy that serves an application below a path, with or without that path in what it asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tools.screenshots.served import served

_OF_ONE_HOP = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}


class Proxy:
    """Asks `target`, which may be set later; what is not below `prefix` is not there."""

    def __init__(self, prefix: str, *, strips: bool, keeps_host: bool) -> None:
        self.prefix, self.strips, self.keeps_host = prefix, strips, keeps_host
        self.target = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = await self._ask(request)
        await response(scope, receive, send)

    async def _ask(self, request: Request) -> Response:
        path = request.url.path
        if not path.startswith(f"{self.prefix}/"):
            return PlainTextResponse("not behind this proxy", 404)
        path = path.removeprefix(self.prefix) if self.strips else path
        headers = [(key, value) for key, value in request.headers.items() if key not in _OF_ONE_HOP]
        headers.append(("accept-encoding", "identity"))
        if self.keeps_host:
            headers.append(("host", request.headers["host"]))
        address = f"{self.target}{path}" + (f"?{request.url.query}" if request.url.query else "")
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.request(request.method, address, headers=headers, content=await request.body())
        response = Response(answer.content, answer.status_code)
        kept = [(key, value) for key, value in answer.headers.raw if key.decode().lower() not in _OF_ONE_HOP]
        response.raw_headers = [*kept, (b"content-length", str(len(answer.content)).encode())]
        return response


@contextmanager
def proxied(prefix: str, *, strips: bool, keeps_host: bool) -> Iterator[tuple[Proxy, str]]:
    """Give a proxy and the address of what is behind it."""
    proxy = Proxy(prefix, strips=strips, keeps_host=keeps_host)
    with served(proxy) as address:
        yield proxy, f"{address}{prefix}"
