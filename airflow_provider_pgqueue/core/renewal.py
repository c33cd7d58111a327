"""Keeps a lease alive while somebody works on its messages."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self


class Renewable(Protocol):
    """What a renewal extends; it must not raise."""

    def renew(self) -> None:
        """Extend what is still held."""


class Renewal:
    """A thread that renews what it was given last, every third of `lease_for`, while the context is open.

    The thread starts with the first lease, and one is enough for all the leases that a loop takes after another.
    """

    def __init__(self, lease_for: timedelta) -> None:
        self._interval = lease_for.total_seconds() / 3
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Renewable | None = None

    def hold(self, lease: Renewable) -> None:
        """Renew this one from now on, in place of the one before."""
        self._lease = lease
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pgqueue-renewal", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the thread, and wait for a renewal that is under way."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if self._lease is not None:
                self._lease.renew()
