"""Text of strangers, fit for a terminal: bodies, references and reasons may hold anything."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with control characters and direction marks escaped, so that it cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(text: str) -> str:
    """Return the text in one printable line."""
    return printable(" ".join(text.split()))
