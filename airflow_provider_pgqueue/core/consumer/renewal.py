"""Keeps leases from ending while their messages are handled."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Final

from airflow_provider_pgqueue.core.consumer.lease_base import LeaseBase

_AFTER_FAILURE: Final = 1.0  # seconds until the next try


class Renewal:
    """A thread that renews the lease it was given last, every third of its length, until it is closed.

    It starts with the first lease. One thread serves all the leases that a loop takes, one after another.
    """

    def __init__(self) -> None:
        self._interval = 0.0
        self._woken = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lease: LeaseBase | None = None
        self._renewing = threading.Lock()

    def hold(self, lease: LeaseBase, lease_for: timedelta) -> None:
        """Renew this lease from now on instead of the previous one."""
        # A third: when one renewal fails or is late, there is time for another before the lease ends.
        before, self._interval = self._interval, lease_for.total_seconds() / 3
        if self._interval < before:
            self._woken.set()  # or the thread would sleep past the end of a shorter lease
        self._lease = lease
        if self._thread is None:
            # A daemon, so that a process that ends does not wait for it; what it leased comes back by itself.
            self._thread = threading.Thread(target=self._run, name="pgqueue-renewal", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Renew nothing until the next lease, after a renewal in progress."""
        with self._renewing:
            self._lease = None

    def close(self) -> None:
        """Stop the thread, and wait for a renewal in progress."""
        self._closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        renewed = True
        while not self._closed:
            if self._woken.wait(self._interval if renewed else min(self._interval, _AFTER_FAILURE)):
                self._woken.clear()
                continue
            with self._renewing:
                renewed = self._lease is None or self._lease.renew()
