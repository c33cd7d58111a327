"""Numbers with their nouns and units, as logs, errors and the command line print them."""

from __future__ import annotations


def quantity(number: int, noun: str = "message") -> str:
    """Return the number and its noun, which agree: `1 message`, `1,200 dead messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(number: float, seconds: float) -> str:
    """Return how many messages a second that is: `1,234 messages/s`, or `0.25 messages/s` where it is slow."""
    return per_second(number / max(seconds, 0.001)).replace("/", " messages/")


def per_second(number: float) -> str:
    """Return the same without the noun, for a column that says what is counted: `1,234/s`."""
    return f"{number:,.0f}/s" if number >= 10 else f"{number:.2g}/s"
