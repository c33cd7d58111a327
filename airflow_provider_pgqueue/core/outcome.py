"""What a handler says about a message: nothing (success), or one of these."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

_LONGEST_TRACEBACK: Final = 8000  # characters


@dataclass(frozen=True, slots=True)
class Success:
    """The message is done; `details` and a small JSON `output` are kept in the archive."""

    details: str | None = None
    output: Any = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid: archived as `rejected` with the reason, never retried."""

    reason: str
    output: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The message cannot be handled: archived as `failed` now, without further attempts.

    `failure` is an object for whoever repairs the message later: `error`, `message`, `traceback`; see `describe`.
    """

    details: str
    failure: Mapping[str, Any] | None = None
    output: Any = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again after `delay`, or after the back-off of the queue.

    With `count_attempt` the last attempt of a message archives it as `failed` with the details; without it this is
    "come back later" and may be said any number of times.
    """

    delay: timedelta | None = None
    details: str | None = None
    count_attempt: bool = True
    failure: Mapping[str, Any] | None = None


Outcome = Success | Rejected | Failed | Retry


class RejectMessage(Exception):
    """Raised by a handler: the message is invalid. The text becomes the reason."""


def describe(error: BaseException) -> dict[str, str]:
    """Return an exception as the archive keeps it: its class, its text, and the end of its traceback.

    The text may quote the body; the archive has the body anyway, a log must not have it.
    """
    lines = "".join(traceback.format_exception(error))
    kind = type(error)
    return {
        "error": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": storable(str(error)[:2000]),
        "traceback": storable(lines[-_LONGEST_TRACEBACK:]),
    }


def storable(text: str) -> str:
    """Return a text without what PostgreSQL cannot hold: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
