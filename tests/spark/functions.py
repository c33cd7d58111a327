"""Functions that the command line finds by their name."""

from __future__ import annotations

import os
from typing import Any


def accept(messages: Any) -> None:
    """Succeed with everything."""


def pair(message: Any, shop: Any) -> None:
    """Take one more than it gets."""


def count(messages: Any) -> int:
    """Return what is no answer."""
    return len(messages)


def refuse(messages: Any) -> None:
    """Fail on everything."""
    raise ValueError("no city")


def keep(message: Any) -> Any:
    """Requeue a dead message as it is."""
    return message.body


def double(message: Any) -> Any:
    """Expect a number."""
    return int(message.body) * 2


def end_the_process(messages: Any) -> None:
    """End the process of the task, as a crash of a library would."""
    os._exit(9)
