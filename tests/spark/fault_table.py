"""What the tests of faults counted, as the table that ends a run of the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

HEADER = ("fault", "where", "times", "published", "found in", "once", "lost", "twice", "effects repeated (at most)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What became of messages under a fault: how many were published, are there once, are lost, are there again."""

    name: str
    where: str
    times: int
    published: int
    place: str
    once: int
    lost: int
    twice: int
    repeated: int | None
    allowed: int

    @classmethod
    def counted(
        cls,
        name: str,
        *,
        where: str,
        times: int,
        published: Iterable[Hashable],
        found: Iterable[Hashable],
        place: str = "archive",
        effects: Iterable[Hashable] | None = None,
        allowed: int = 0,
    ) -> Fault:
        """Count by the keys of messages; a key that nobody published is one too many."""
        wanted, there = set(published), Counter(found)
        had = None if effects is None else Counter(effects)
        return cls(
            name=name,
            where=where,
            times=times,
            published=len(wanted),
            place=place,
            once=sum(there[key] == 1 for key in wanted),
            lost=len(wanted - there.keys()) + (0 if had is None else len(wanted - had.keys())),
            twice=there.total() - len(wanted & there.keys()),
            repeated=None if had is None else had.total() - len(had),
            allowed=allowed,
        )

    @property
    def is_harmless(self) -> bool:
        """Whether each message is there once, and no more effects were repeated than the documentation says."""
        return (self.lost, self.twice) == (0, 0) and (self.repeated or 0) <= self.allowed and self.times > 0

    def cells(self) -> tuple[str, ...]:
        """Return a line of the table."""
        counts = map(str, (self.published, self.place, self.once, self.lost, self.twice))
        effects = "-" if self.repeated is None else f"{self.repeated} ({self.allowed})"
        return (self.name, self.where, str(self.times), *counts, effects)


def lines(faults: Sequence[Fault]) -> Iterator[str]:
    """Give the lines of the table; numbers stand right."""
    rows = [HEADER, *(fault.cells() for fault in faults)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, rows[-1], strict=True)
        yield "  ".join(cell.rjust(width) if last.isdigit() else cell.ljust(width) for cell, width, last in cells)
