"""Where the page is: below which path, whether or not a proxy in front of it strips that path."""

from __future__ import annotations

from typing import Any


class WholePaths:
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
        # Of a mounted application `root_path` includes the place where it is mounted, and so does the path.
        return str(scope.get("app_root_path", root).rstrip("/")) + path
    return path
