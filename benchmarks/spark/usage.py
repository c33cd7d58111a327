"""What a piece of work costs: seconds, CPU seconds of Spark, Python and PostgreSQL, and the most memory they had."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

EVERY: Final = 0.5


@dataclass(slots=True)
class Usage:
    """The cost of what ran inside `measured`; CPU in seconds, memory in MiB, each by kind: jvm, python, postgres."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all processes together."""
        return sum(self.cpu.values())


@contextmanager
def measured(server_pid: int, spark_pid: int) -> Iterator[Usage]:
    """Measure two trees of processes: PostgreSQL's, and that of whoever started Spark, the calling process too.

    What a process used that has ended counts where its parent has waited for it. `peak` is of one process of a kind:
    the largest that was seen.
    """
    usage, stop = Usage(), threading.Event()
    roots = (server_pid, spark_pid)
    before, started = _cpu(roots), time.monotonic()
    watch = threading.Thread(target=_watch, args=(roots, usage, stop), daemon=True)
    watch.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - started
        after = _cpu(roots)
        usage.cpu = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
        stop.set()
        watch.join()


def _watch(roots: tuple[int, ...], usage: Usage, stop: threading.Event) -> None:
    while not stop.wait(EVERY):
        for process in _processes(roots):
            with suppress(psutil.Error):
                kind, memory = _kind(process), process.memory_info().rss / 2**20
                usage.peak[kind] = max(usage.peak.get(kind, 0.0), memory)


def _cpu(roots: tuple[int, ...]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for process in _processes(roots):
        with suppress(psutil.Error):
            times, kind = process.cpu_times(), _kind(process)
            spent[kind] = spent.get(kind, 0.0) + sum(times[:4])  # its own, and of children that ended
    return spent


def _processes(roots: tuple[int, ...]) -> Iterator[psutil.Process]:
    for pid in roots:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            yield root
            yield from root.children(recursive=True)


def _kind(process: psutil.Process) -> str:
    name = process.name()
    return "jvm" if name == "java" else "postgres" if name.startswith("postgres") else "python"
