"""What a handler says about a message: nothing (success), or one of these."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Success:
    """The message is done; `details` are kept in the archive."""

    details: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid: archived as `rejected` with the reason, never retried."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The message cannot be handled: archived as `failed` now, without further attempts."""

    details: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again after `delay`.

    With `count_attempt` the last attempt of a message archives it as `failed` with the details; without it this is
    "come back later" and may be said any number of times.
    """

    delay: timedelta = timedelta(0)
    details: str | None = None
    count_attempt: bool = True


Outcome = Success | Rejected | Failed | Retry


class RejectMessage(Exception):
    """Raised by a handler: the message is invalid. The text becomes the reason."""
