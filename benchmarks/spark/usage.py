"""The cost of a piece of work: seconds, CPU seconds and peak memory, of each kind of process."""

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
SERVER: Final = "postgres"

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
    before, started = _of_ended(trees), time.monotonic()
    watch.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - started
        stop.set()
        watch.join()
        usage.cpu = watched.spent()
        usage.cpu[SERVER] = _of_ended(trees) - before
        usage.peak = watched.peak


class _Watched:
    """The usage of processes, as polled while they ran."""

    def __init__(self, trees: Trees) -> None:
        self.peak: dict[str, float] = {}
        self._trees = trees
        self._seen: dict[psutil.Process, tuple[str, float, float]] = {}
        self._poll(before=True)

    def until(self, stop: threading.Event) -> None:
        """Poll the processes now and then."""
        while not stop.wait(EVERY):
            self._poll()
        self._poll()

    def spent(self) -> Counter[str]:
        """Return the CPU seconds of each kind."""
        spent: Counter[str] = Counter()
        for kind, at_first, at_last in self._seen.values():
            spent[kind] += at_last - at_first
        return spent

    def _poll(self, *, before: bool = False) -> None:
        for kind, process in _processes(self._trees):
            with suppress(psutil.Error):
                times = process.cpu_times()
                own = times.user + times.system
                _, at_first, _ = self._seen.get(process, ("", own if before else 0.0, 0.0))
                self._seen[process] = (kind, at_first, own)
                self.peak[kind] = max(self.peak.get(kind, 0.0), process.memory_info().rss / 2**20)


def _of_ended(trees: Trees) -> float:
    """Return the CPU seconds of the server: its sessions come and go quickly, and it waits for each."""
    spent = 0.0
    for _, process in _processes({SERVER: trees[SERVER]}):
        with suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])
    return spent


def _processes(trees: Trees) -> Iterator[tuple[str, psutil.Process]]:
    for name, roots in trees.items():
        for process in (process for root in roots for process in _tree(root)):
            with suppress(psutil.Error):
                # Not by its name: what a JVM forked has another one for a short time, and the memory of the JVM.
                yield f"{name} jvm" if process.exe().endswith("/java") else name, process


def _tree(root: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    return []
