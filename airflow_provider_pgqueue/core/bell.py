"""A bell inside a process, which a signal handler may ring, too."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """Wakes the thread that waits for it. Any number of rings while nobody waits are one.

    Any thread may ring it, and so may a signal handler, whatever it interrupts: a call of these methods, too. With
    `threading.Event`, whose lock is not reentrant, that would block forever.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake whoever waits, or whoever waits next."""
        if self._rings.empty():  # of several at this time each may ring: that costs a look in vain
            self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Return at a ring, at once if one came since the last `wait`, or after so many seconds."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
