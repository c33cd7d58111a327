"""Functions that the command line finds by their name."""

from __future__ import annotations

from typing import Any


def accept(messages: Any) -> None:
    """Succeed with everything."""


def count(messages: Any) -> int:
    """Return what is no answer."""
    return len(messages)
