"""A series of numbers in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(numbers: Sequence[int | None]) -> str:
    """Return a bar for each number, the largest one full; a dot where the number is not known."""
    most = max((number for number in numbers if number), default=0)
    return "".join("·" if number is None else _bar(number, most) for number in numbers)


def _bar(number: int, most: int) -> str:
    # Whatever is there at all is seen.
    return _BARS[0 if number <= 0 else max(1, number * (len(_BARS) - 1) // most)]
