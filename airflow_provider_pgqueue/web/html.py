"""Templates, and the values in them: text of strangers is escaped, and cannot reorder the text around it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from airflow_provider_pgqueue.core.frames import first_seen, own_frames, without_class
from airflow_provider_pgqueue.core.quantity import AtLeast, quantity, size
from airflow_provider_pgqueue.core.unseen import legible
from airflow_provider_pgqueue.web.guard import token_for
from airflow_provider_pgqueue.web.request import root_of, site_of, task_of

NONE: Final = "\N{EN DASH}"
_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def page(request: Request, name: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page, or only its living part if a script of the page asks for that."""
    part = request.headers.get("hx-request") == "true" and name != "error.html"
    text = (
        _environment()
        .get_template(name)
        .render(
            layout="part.html" if part else "layout.html",
            root=root_of(request),
            person=getattr(request.state, "person", None),
            token=lambda: token_for(request),
            links=site_of(request).links,
            now=datetime.now(UTC),
            **context,
        )
    )
    return HTMLResponse(text, status_code=status, headers={"Vary": "HX-Request"})


def error_page(request: Request, status: int, problem: str, fix: str | None = None) -> HTMLResponse:
    """Return a page with the problem and the fix, and for an unknown person a link to the login."""
    unknown = status in (401, 403) and not hasattr(request.state, "person")
    login = site_of(request).links.login(_asked(request)) if unknown else None
    return page(request, "error.html", status, problem=problem, fix=fix, code=status, login=login)


def _asked(request: Request) -> str:
    path = quote(request.scope["path"])
    return f"{path}?{request.url.query}" if request.url.query else path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("airflow_provider_pgqueue.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["a_moment"] = lambda given: isinstance(given, datetime)
    environment.filters |= {
        "age": age,
        "seen": lambda queue, name: number(queue.seen(name)),
        "number": number,
        "moment": moment,
        "iso": _iso,
        "printable": legible,
        "quantity": quantity,
        "size": size,
        "pretty": pretty,
        "shown": shown,
        "task": lambda name: task_of(name) if name else None,
        "own_frames": own_frames,
        "first_seen": first_seen,
        "without_class": without_class,
        "combine": lambda given, more: {**given, **more},
        "segment": lambda text: quote(str(text), safe=""),
        "query": lambda given: urlencode({key: value for key, value in given.items() if value not in (None, "")}),
        "series": lambda given: json.dumps(given, separators=(",", ":")),
    }
    return environment


def number(given: int | float | None) -> str:
    """Return a number with its thousands apart, and a plus where there are more; a dash for an unknown number."""
    if given is None or (isinstance(given, AtLeast) and not given.counted):
        return NONE
    if isinstance(given, float) and given < 10:
        return f"{given:.2g}"
    return f"{given:,}" if isinstance(given, AtLeast) else f"{given:,.0f}"


def age(given: timedelta | None) -> str:
    """Return a duration in its two largest units: `3 d 4 h`, `12 min`, `45 s`, `80 ms`."""
    if given is None:
        return NONE
    seconds = given.total_seconds()
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{sign}{seconds:.0f} s"
    for (unit, length), (smaller, part) in pairwise(_UNITS):
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            if rest // part and whole < 100:
                return f"{sign}{whole:,} {unit} {rest // part} {smaller}"
            return f"{sign}{whole:,} {unit}"
    return f"{sign}{seconds // 60:.0f} min"


def moment(given: datetime | None) -> str:
    """Return a time in UTC, to the second, as the shell prints one."""
    return NONE if given is None else given.astimezone(UTC).isoformat(sep=" ", timespec="seconds")


def shown(given: Any, none: str = NONE) -> str:
    """Return a value of any kind as the page shows its kind."""
    match given:
        case None:
            return none
        case timedelta():
            return age(given)
        case datetime():
            return moment(given)
        case int() | float() if not isinstance(given, bool):
            return number(given)
    return legible(given)


def _iso(given: datetime | None) -> str:
    return "" if given is None else given.astimezone(UTC).isoformat(timespec="seconds")


def pretty(given: Any, longest: int = 200_000) -> str:
    """Return JSON to be read, in lines, with no letter hidden."""
    text = given if isinstance(given, str) else json.dumps(given, indent=2, ensure_ascii=False, default=str)
    lines = text[: longest + 1].splitlines()
    shown = "\n".join(legible(line, longest) for line in lines)
    return shown if len(text) <= longest else shown[:longest] + "\n…"
