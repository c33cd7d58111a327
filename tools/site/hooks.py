"""What MkDocs calls while it builds: the generated parts of the reference, and links into the repository."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from tools import ROOT
from tools.site import commands, links, schema, search, verbs

_log = logging.getLogger("mkdocs.hooks.site")  # below the logger whose warnings MkDocs counts

_MARKER: Final = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
_LOADED: Final = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]* (?:src|href)="((?:https?:)?//[^"]*)"')
_GENERATED: Final[dict[str, Callable[[], str]]] = {
    "commands": cache(commands.reference),
    "schema": cache(schema.reference),
    "verbs": verbs.reference,
}


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page as the site shows it."""
    search.describe(page.file.src_uri, page.meta)
    whole = _MARKER.sub(lambda marker: _GENERATED[marker[1]](), markdown)
    place = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    return links.to_repository(whole, place, ROOT, f"{config.extra['repository']}/blob/main")


def on_post_page(output: str, *, page: Any, **_: Any) -> None:
    """Warn of what a page would load from elsewhere: a reader of the documentation is nobody's business."""
    for address in _LOADED.findall(output):
        _log.warning("%s loads %s", page.file.src_uri, address)
