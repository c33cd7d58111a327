"""Numbers with their nouns and units, as logs, errors and the command line print them."""

from __future__ import annotations


def quantity(number: int, noun: str = "message") -> str:
    """Return a number with its noun in the right form: `1 message`, `1,200 dead messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Estimate(int):
    """A number that people see with `~`, rounded to three digits; in JSON it stays a number."""

    def __str__(self) -> str:
        return f"{self:d}"

    def __format__(self, spec: str) -> str:
        return "~" + format(round(int(self), 3 - len(repr(abs(int(self))))), spec)


def estimate(number: int, margin: int) -> int:
    """Return the number as an Estimate, unless its margin is 0."""
    return Estimate(number) if margin else number


def rate(number: float, seconds: float) -> str:
    """Return a rate of messages: `1,234 messages/s`, with decimals where it is slow: `0.25 messages/s`."""
    return per_second(number / max(seconds, 0.001)).replace("/", " messages/")


def per_second(number: float) -> str:
    """Return a rate without a noun, for a column whose heading names it: `1,234/s`."""
    return f"{number:,.0f}/s" if number >= 10 else f"{number:.2g}/s"
