"""Numbers with their nouns and units, as logs, errors and the command line print them."""

from __future__ import annotations


def quantity(number: int, noun: str = "message") -> str:
    """Return a number with its noun in the right form: `1 message`, `1,200 dead messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(number: float, seconds: float) -> str:
    """Return a rate of messages: `1,234 messages/s`, with decimals where it is slow: `0.25 messages/s`."""
    return per_second(number / max(seconds, 0.001)).replace("/", " messages/")


def per_second(number: float) -> str:
    """Return a rate without a noun, for a column whose heading names it: `1,234/s`."""
    return f"{number:,.0f}/s" if number >= 10 else f"{number:.2g}/s"
