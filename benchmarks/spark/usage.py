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
    """Measure trees of processes. What a process used that has ended counts where its parent has waited for it."""
    usage, stop = Usage(), threading.Event()
    watch = threading.Thread(target=_watch, args=(trees, usage, stop), daemon=True)
    before, started = _cpu(trees), time.monotonic()
    watch.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - started
        usage.cpu = _cpu(trees)
        usage.cpu.subtract(before)
        stop.set()
        watch.join()


def _watch(trees: Trees, usage: Usage, stop: threading.Event) -> None:
    while not stop.wait(EVERY):
        for kind, process in _processes(trees):
            with suppress(psutil.Error):
                usage.peak[kind] = max(usage.peak.get(kind, 0.0), process.memory_info().rss / 2**20)


def _cpu(trees: Trees) -> Counter[str]:
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
