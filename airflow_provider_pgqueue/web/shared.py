"""Results that all viewers share: ten viewers cost one query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")
_MOST: Final = 500


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    until: float = 0.0


class Shared:
    """Keeps results for some seconds. Whoever asks while one is looked for waits for it, and does not ask again.

    An error is not kept: the next one to ask tries again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, seconds: float, find: Callable[[], T]) -> T:
        """Return the result for a key, found at most `seconds` ago."""
        kept = self._one(key)
        with kept.lock:
            if self._clock() >= kept.until:
                kept.value = find()
                kept.until = self._clock() + seconds
            value: T = kept.value
            return value

    def forget(self) -> None:
        """Look for every result again: somebody changed something."""
        with self._lock:
            self._kept.clear()

    def _one(self, key: Hashable) -> _Kept:
        with self._lock:
            if key not in self._kept and len(self._kept) >= _MOST:
                # The oldest entry; a searcher can make as many keys as there are words.
                self._kept.pop(next(iter(self._kept)))
            return self._kept.setdefault(key, _Kept())
