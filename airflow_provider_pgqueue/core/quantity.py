"""Numbers with their nouns and units, as logs, errors and the command line print them."""

from __future__ import annotations


def quantity(number: int, noun: str = "message") -> str:
    """Return the number and its noun, which agree: `1 message`, `1,200 dead messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(number: float, seconds: float = 1.0) -> str:
    """Return how many messages a second that is: `1,234 messages/s`, and `0.25 messages/s` where it is slow."""
    each = number / max(seconds, 0.001)
    return f"{each:,.0f} messages/s" if each >= 10 or not each else f"{each:.2g} messages/s"
