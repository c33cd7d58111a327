"""The error of an attempt as whoever wrote the handler reads it: each thing once, and its own frames first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

# With the line of the source and its marks, and what Python says of repeated ones.
_FRAME: Final = re.compile(r'^  File "([^"\n]*)", line \d+[^\n]*(?:\n {4}[^\n]*)*', re.MULTILINE)
_FOREIGN: Final = re.compile(
    r"[/\\](?:(?:site|dist)-packages|airflow_provider_pgqueue|lib[/\\]python3[^/\\]*)[/\\]|^<frozen "
)


def own_frames(traceback: str) -> str | None:
    """Return the frames that are of no library, with the error; None if all are, or none is."""
    frames = list(_FRAME.finditer(traceback))
    own = [frame[0] for frame in frames if not _FOREIGN.search(frame[1])]
    if not own or len(own) == len(frames):
        return None
    return "\n".join([*own, traceback[frames[-1].end() :].strip("\n")])


def without_error(traceback: str) -> str:
    """Return a traceback up to its last frame."""
    frames = list(_FRAME.finditer(traceback))
    return traceback[: frames[-1].end()] if frames else traceback


def without_class(text: str | None, error: str | None) -> str:
    """Return the text of an error without the class at its beginning, because that is shown next to it."""
    text, name = text or "", (error or "").rpartition(".")[2]
    if not name or text in (error, name):
        return "" if name else text
    return text.removeprefix(f"{name}: ")


def first_seen(life: Iterable[Mapping[str, Any]]) -> list[int | None]:
    """Return for each entry the earlier attempt that has the same traceback, and None if there is no such attempt."""
    seen: dict[str, int] = {}
    found = []
    for entry in life:
        first = seen.setdefault(entry["traceback"], entry["attempt"]) if entry["traceback"] else None
        found.append(None if first == entry["attempt"] else first)
    return found
