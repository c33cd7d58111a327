"""What one cause of death is: which messages of failures belong together, and whether more of them come or fewer.

A fingerprint is the same for messages that differ in numbers, ids and quoted texts. Names, cities and other plain words
("no address for anna", "no address for bob") make two fingerprints of one cause; `group` puts them together again, in
the manner of the log parser Drain (He et al., 2017). docs/decisions/0013-causes-of-death.md says why.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

Trend = Literal["new", "growing", "steady", "fading"]

_NO_WORDS: Final = "(no message)"
_MOST_WORDS: Final = 60  # of a message that are looked at
_MOST_PATTERNS: Final = 500  # of one length that a message is compared with
_SHARED: Final = 0.7
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER: Final = re.compile(r"(?<!\w)[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*(?!\w)")
_REPEATED: Final = re.compile(r"([#?])(?:[\s,;:.]*\1)+")

_HOURS_UP_TO: Final = timedelta(days=14)
_FACTOR: Final = 2.0
_DEVIATIONS: Final = 2.0
_Words = tuple[str, ...]


def masked(text: str) -> str:
    """Return a message with `?` for quoted texts and `#` for numbers and ids, as `messages.fingerprint` does."""
    return _NUMBER.sub("#", _QUOTED.sub("?", text))


def normalise(text: str) -> str:
    """Return a message without what differs from one to the next; a list of numbers or quoted texts counts as one.

    What cannot be printed is left out, so that it is harmless in a terminal.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in masked(text))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time from `begin` to before `end`, in steps of an hour, or of a day if it is longer than two weeks."""

    begin: datetime
    end: datetime

    @property
    def step(self) -> timedelta:
        """How long one step is."""
        return timedelta(hours=1) if self.end - self.begin <= _HOURS_UP_TO else timedelta(days=1)

    @property
    def first_step(self) -> datetime:
        """When the first step begins, on the full hour or at midnight UTC."""
        seconds = self.step.total_seconds()
        return datetime.fromtimestamp(self.begin.timestamp() // seconds * seconds, tz=self.begin.tzinfo)

    @property
    def steps(self) -> int:
        """How many steps there are; the first and the last may be cut by the period."""
        return max(1, math.ceil((self.end - self.first_step) / self.step))

    @property
    def last_quarter(self) -> datetime:
        """When the last quarter begins, which the trend compares with what was before."""
        return self.end - (self.end - self.begin) / 4


def trend(period: Period, *, before: int, lately: int, first_at: datetime) -> Trend:
    """Say how a cause develops, from how many died before the last quarter of the window and in it.

    `new`: none before. `fading`: none lately. Else `growing` or `fading` if the rate at least doubled or halved since
    the first death in the window, and if that is more than two standard deviations off what chance gives.
    """
    if not before:
        return "new"
    if not lately:
        return "fading"
    lately_for = period.end - period.last_quarter
    before_for = max(period.last_quarter - first_at, period.step)
    change = (lately / lately_for.total_seconds()) / (before / before_for.total_seconds())
    expected = lately_for / (lately_for + before_for)
    number = before + lately
    deviations = (lately - number * expected) / math.sqrt(number * expected * (1 - expected))
    if change >= _FACTOR and deviations >= _DEVIATIONS:
        return "growing"
    if change <= 1 / _FACTOR and deviations <= -_DEVIATIONS:
        return "fading"
    return "steady"
