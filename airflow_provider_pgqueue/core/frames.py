"""A traceback as whoever wrote the handler reads it: its own frames come first."""

from __future__ import annotations

import re
from typing import Final

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
