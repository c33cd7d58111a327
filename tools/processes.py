"""Finds and ends processes without a doubt about whose they are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path


def in_session(session: int) -> set[int]:
    """Return the processes of the session that this process leads, also those that ended and were not waited for."""
    found = set()
    for pid in _all():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.add(pid)
    return found


def with_environment(name: str, value: str, *, among: Collection[int] | None = None) -> set[int]:
    """Return the living processes, or those among some, that were started with this variable, apart from ourselves."""
    wanted = f"{name}={value}".encode()
    found = set()
    for pid in _all() if among is None else among:
        with suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def send(pids: Collection[int], signal_number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def end(find: Callable[[], set[int]], *, patience: float = 30.0) -> None:
    """End what `find` returns until it returns nothing: TERM, and KILL after `patience` seconds."""
    give_up_at = time.monotonic() + patience
    told: set[int] = set()
    while pids := find():
        if time.monotonic() > give_up_at:
            send(pids, signal.SIGKILL)
        else:
            send(pids - told, signal.SIGTERM)
            told |= pids
        time.sleep(0.1)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
