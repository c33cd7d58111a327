"""What a piece of work costs: seconds, CPU seconds and the most memory, of each kind of process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

EVERY: Final = 0.5

Trees = Mapping[str, Sequence[int]]  # names, and the processes that are the roots of the trees


@dataclass(slots=True)
class Usage:
    """The cost of what ran inside `measured`, by kind of process: the name of its tree and `jvm`, or the name alone.

    :param cpu: seconds, of all processes of a kind.
    :param peak: MiB, of that process of a kind that had the most.
    """

    seconds: float = 0.0
    cpu: Counter[str] = field(default_factory=Counter)
    peak: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all processes together."""
        return sum(self.cpu.values())


@contextmanager
def measured(trees: Trees) -> Iterator[Usage]:
    """Measure trees of processes, the short-lived and those that are killed too."""
    usage, stop, watched = Usage(), threading.Event(), _Watched(trees)
    watch = threading.Thread(target=watched.until, args=(stop,), daemon=True)
    before, started = _cpu(trees), time.monotonic()
    watch.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - started
        reaped = _cpu(trees)
        reaped.subtract(before)
        stop.set()
        watch.join()
        # Both are too small: one lacks whose parent was killed, the other the last moments and what came and went.
        usage.cpu = reaped | watched.spent()
        usage.peak = watched.peak


class _Watched:
    """What was seen of processes while they ran."""

    def __init__(self, trees: Trees) -> None:
        self.peak: dict[str, float] = {}
        self._trees = trees
        self._seen: dict[psutil.Process, tuple[str, float, float]] = {}
        self._look(before=True)

    def until(self, stop: threading.Event) -> None:
        """Look at them every now and then."""
        while not stop.wait(EVERY):
            self._look()
        self._look()

    def spent(self) -> Counter[str]:
        """Return the CPU seconds of each kind."""
        spent: Counter[str] = Counter()
        for kind, at_first, at_last in self._seen.values():
            spent[kind] += at_last - at_first
        return spent

    def _look(self, *, before: bool = False) -> None:
        for kind, process in _processes(self._trees):
            with suppress(psutil.Error):
                times = process.cpu_times()
                own = times.user + times.system
                _, at_first, _ = self._seen.get(process, ("", own if before else 0.0, 0.0))
                self._seen[process] = (kind, at_first, own)
                self.peak[kind] = max(self.peak.get(kind, 0.0), process.memory_info().rss / 2**20)


def _cpu(trees: Trees) -> Counter[str]:
    """Return what processes used, and their children that ended and that they waited for."""
    spent: Counter[str] = Counter()
    for kind, process in _processes(trees):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent[kind] += times.user + times.system
            # The children of a JVM are Python.
            spent[kind.removesuffix(" jvm")] += times.children_user + times.children_system
    return spent


def _processes(trees: Trees) -> Iterator[tuple[str, psutil.Process]]:
    for name, roots in trees.items():
        for root in roots:
            with suppress(psutil.Error):
                for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                    yield f"{name} jvm" if process.name() == "java" else name, process
