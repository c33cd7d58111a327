"""The hooks of the MkDocs build: the generated parts of the reference, and links into the repository."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from tools import ROOT
from tools.site import commands, links, schema, verbs

_log = logging.getLogger("mkdocs.hooks.site")  # below the logger whose warnings MkDocs counts

_MARKER: Final = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
_ON_GITHUB: Final = re.compile(r"^> GitHub does not show .*\n", re.M)  # on the site that would be wrong
_LOADED: Final = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]* (?:src|href)="((?:https?:)?//[^"]*)"')
# For words that users bring from elsewhere, the page that a search of the site finds first.
_WORDS: Final = {
    "tutorial/quickstart.md": ["install airflow", "install", "getting started"],
    "how-to/broken-handlers.md": ["retry", "retries", "back-off"],
    "how-to/dead-messages.md": ["DLQ", "dead letter queue", "poison", "reprocess", "nightly"],
    "how-to/consume.md": ["ack", "acknowledge", "consume", "sensor"],
    "how-to/publish.md": ["enqueue", "send"],
}
_GENERATED: Final[dict[str, Callable[[], str]]] = {
    "commands": cache(commands.reference),
    "schema": cache(schema.reference),
    "verbs": verbs.reference,
}


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page as the site shows it."""
    if words := _WORDS.get(page.file.src_uri):
        page.meta["tags"] = words  # which the index weighs more than any title
    whole = _MARKER.sub(lambda marker: _GENERATED[marker[1]](), _ON_GITHUB.sub("", markdown))
    place = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    return links.to_repository(whole, place, ROOT, f"{config.extra['repository']}/blob/main")


def on_post_page(output: str, *, page: Any, **_: Any) -> None:
    """Warn of resources that a page loads from other hosts, which could track readers of the documentation."""
    for address in _LOADED.findall(output):
        _log.warning("%s loads %s", page.file.src_uri, address)
