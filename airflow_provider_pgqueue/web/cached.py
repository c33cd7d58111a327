"""Results that all viewers share: ten viewers cost one query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from airflow_provider_pgqueue.core.errors import ConnectionFailed

T = TypeVar("T")
_MOST: Final = 500
_USUAL: Final = 4.0  # the pages ask every five
_KEPT_FAILURE: Final = 3.0


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    error: ConnectionFailed | None = None
    found: bool = False
    until: float = 0.0


class Shared:
    """Keeps results for some seconds. A request for a key whose query is running waits for it, and runs no second one.

    No request waits for long: the last result, however old, is better than a blocked thread. A failure to reach the
    database is kept for a short time, too, so that not every viewer tries again. Other errors are not kept.

    :param patience: seconds that a request waits for another one, while it holds a thread of the server.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, patience: float = 2.0) -> None:
        self._clock = clock
        self._patience = patience
        self._kept: dict[Hashable, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, find: Callable[[], T], *, seconds: float = _USUAL) -> T:
        """Return the result for a key, found at most `seconds` ago."""
        kept = self._one(key)
        if not kept.lock.acquire(timeout=self._patience):
            late: T = self._late(kept)
            return late
        try:
            if self._clock() >= kept.until:
                self._find(kept, seconds, find)
            if kept.error is not None:
                raise kept.error.with_traceback(None)
            value: T = kept.value
            return value
        finally:
            kept.lock.release()

    def _find(self, kept: _Kept, seconds: float, find: Callable[[], Any]) -> None:
        try:
            kept.value, kept.error, kept.found = find(), None, True
            kept.until = self._clock() + seconds
        except ConnectionFailed as error:
            kept.error = error
            kept.until = self._clock() + _KEPT_FAILURE

    def _late(self, kept: _Kept) -> Any:
        if not kept.found:
            raise ConnectionFailed("the database is still being asked", "Try again in some seconds.")
        return kept.value

    def forget(self) -> None:
        """Forget all results after a change."""
        with self._lock:
            self._kept.clear()

    def _one(self, key: Hashable) -> _Kept:
        with self._lock:
            if key not in self._kept and len(self._kept) >= _MOST:
                # The oldest entry; a search can make any number of keys.
                self._kept.pop(next(iter(self._kept)))
            return self._kept.setdefault(key, _Kept())
