"""Letters that no reader sees: they steer a terminal, turn the text around, or hide what is written."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Final

# For Unicode the blank of Braille is a symbol, the fillers of Hangul are letters, and selectors of variants are marks.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def legible(text: object, longest: int = 300) -> str:
    """Return a text without what would reorder or hide the letters around it, cut off; an empty one for None."""
    said = "" if text is None else str(text)
    plain = replace_unseen(said[: longest + 1], lambda letter: "\N{REPLACEMENT CHARACTER}")
    return plain if len(plain) <= longest else plain[:longest] + "…"


def replace_unseen(text: str, shown: Callable[[str], str]) -> str:
    """Return the text with what `shown` returns in place of each letter that is not seen as itself."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(shown(one) if not one.isprintable() or _BLANK.match(one) else one for one in text)


def escape_unencodable() -> None:
    """Escape, as JSON does, what the encoding of standard output or standard error lacks.

    Otherwise a command fails in a terminal that is not UTF-8, perhaps after its work is done. JSON keeps its meaning.
    """
    codecs.register_error("pgqueue.json", _as_json)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="pgqueue.json")


def _as_json(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
