"""Numbers with their nouns and units, as logs, errors and the command line print them."""

from __future__ import annotations

from collections.abc import Mapping


def quantity(number: int, noun: str = "message") -> str:
    """Return a number with its noun in the right form: `1 message`, `1,200 dead messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Return a number of bytes in a unit that suits it: `1 byte`, `980 bytes`, `1.5 KiB`, `12.0 MiB`."""
    for unit, length in (("MiB", 2**20), ("KiB", 2**10)):
        if number >= length:
            return f"{number / length:,.1f} {unit}"
    return quantity(number, "byte")


def deaths_text(died: Mapping[str, int]) -> str:
    """Return how many messages died, in all and by result: `3 messages died (2 failed, 1 lock_expired)`."""
    results = ", ".join(f"{number:,} {result}" for result, number in died.items())
    return f"{quantity(sum(died.values()))} died ({results})"


class AtLeast(int):
    """A number that was counted up to a limit: people see `10,000+`; in JSON it stays what it is."""

    counted: int

    def __str__(self) -> str:
        return f"{self:d}"

    def __format__(self, spec: str) -> str:
        return f"{self.counted:{spec}}+"


def seen(number: int, total: int, up_to: int | None) -> int:
    """Return a number as people see it: a part of a total of which as many as `up_to` were counted."""
    if up_to is None or total <= up_to:
        return number
    shown = AtLeast(number)
    shown.counted = min(number, up_to)
    return shown


def rate(number: float, seconds: float) -> str:
    """Return a rate of messages: `1,234 messages/s`, with decimals where it is slow: `0.25 messages/s`."""
    return per_second(number / max(seconds, 0.001)).replace("/", " messages/")


def per_second(number: float) -> str:
    """Return a rate without a noun, for a column whose heading names it: `1,234/s`."""
    return f"{number:,.0f}/s" if number >= 10 else f"{number:.2g}/s"
