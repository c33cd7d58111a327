"""Groups the messages of failures that share their words: "no address for anna", "no address for bob".

A fingerprint is the same for messages that differ in numbers, ids and quoted texts. Names, cities and other plain words
make two fingerprints of one cause; this puts them together again, in the manner of the log parser Drain (He et al.,
2017).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

_NO_WORDS: Final = "(no message)"
_MOST_WORDS: Final = 60  # of a message that are looked at
_MOST_PATTERNS: Final = 500  # of one length that a message is compared with
_SHARED: Final = 0.7
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER: Final = re.compile(r"(?<!\w)[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*(?!\w)")
_REPEATED: Final = re.compile(r"([#?])(?:[\s,;:.]*\1)+")

_Words = tuple[str, ...]


def normalise(text: str) -> str:
    """Return a message without what differs from one to the next: `?` for quoted texts, `#` for numbers and ids.

    Lists of them are one. What cannot be printed is left out, so that it is harmless in a terminal.
    """
    plain = _NUMBER.sub("#", _QUOTED.sub("?", text))
    plain = "".join(letter if letter.isprintable() else " " for letter in plain)
    return " ".join(_REPEATED.sub(r"\1", plain).lower().split()[:_MOST_WORDS])


def group(texts: Iterable[str]) -> dict[str, str]:
    """Return for each normalised message the pattern of its group, with `*` where the words of the group differ.

    Two messages are of one group if they have as many words and share at least 70 % of them, place by place, with all
    others of the group: a chain of small steps does not lead from one cause to another. What comes out depends on the
    set of texts alone, not on their order.
    """
    by_length: dict[int, list[_Words]] = defaultdict(list)
    for text in sorted(set(texts)):
        words = tuple(text.split())
        by_length[len(words)].append(words)
    return {
        " ".join(words): " ".join(pattern) or _NO_WORDS
        for same_length in by_length.values()
        for pattern, members in _grouped(same_length)
        for words in members
    }


def _grouped(messages: Sequence[_Words]) -> list[tuple[_Words, list[_Words]]]:
    patterns: list[_Words] = []
    members: list[list[_Words]] = []
    for words in messages:
        place = _nearest(words, patterns)
        if place is None:
            patterns.append(words)
            members.append([words])
        else:
            patterns[place] = _shared(patterns[place], words)
            members[place].append(words)
    return list(zip(patterns, members, strict=True))


def _nearest(words: _Words, patterns: Sequence[_Words]) -> int | None:
    nearest, most = None, math.ceil(_SHARED * len(words)) - 1
    for place, pattern in enumerate(patterns[:_MOST_PATTERNS]):
        shared = sum(map(str.__eq__, pattern, words))
        if shared > most:
            nearest, most = place, shared
    return nearest


def _shared(pattern: _Words, words: _Words) -> _Words:
    return tuple(mine if mine == other else "*" for mine, other in zip(pattern, words, strict=True))
