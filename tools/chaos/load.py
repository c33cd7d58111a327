"""The actors as processes: started, started again when they were killed, and stopped at the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.chaos.stage import Stage

# kind, name, user. The first letter of a consumer's name is its team, or l for long work.
ACTORS = (
    ("publisher", "team_a.1", "chaos_a"),
    ("publisher", "team_a.2", "chaos_a"),
    ("publisher", "team_b.1", "chaos_b"),
    ("publisher", "anybody.1", "chaos_any"),
    ("functions", "a.functions.1", "chaos_a"),
    ("functions", "a.functions.2", "chaos_a"),
    ("functions", "b.functions", "chaos_b"),
    ("functions", "c.functions", "chaos_any"),
    ("worker", "a.worker.1", "chaos_a"),
    ("worker", "a.worker.2", "chaos_a"),
    ("worker", "b.worker", "chaos_b"),
    ("raw", "raw.1", "chaos_any"),
    ("raw", "raw.2", "chaos_any"),
    ("worker", "l.worker.1", "chaos_a"),
    ("worker", "l.worker.2", "chaos_a"),
    ("effects", "a.effects", "chaos_a"),
    ("maintain", "maintenance", "chaos_any"),
)
# What Airflow and Spark consume.
FOR_OTHERS = (("publisher", "airflow.1", "chaos_any"), ("publisher", "slices.1", "chaos_any"))


@dataclass
class Load:
    """The processes of a run."""

    stage: Stage
    seed: int
    stopping: threading.Event = field(default_factory=threading.Event)
    publishing: bool = True
    restarts: int = 0
    _processes: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)

    def pids(self) -> list[int]:
        """The processes that live."""
        return [process.pid for process in list(self._processes.values()) if process.poll() is None]

    def supervise(self) -> None:
        """Keep every actor running until `stop`."""
        while not self.stopping.wait(0.2):
            for kind, name, user in self.wanted():
                process = self._processes.get(name)
                if process is None or process.poll() is not None:
                    self.restarts += process is not None
                    self.seed += 1
                    self._processes[name] = self._start(kind, name, user)
            if self.stage.slices:
                self.restarts += self.stage.slices.keep_draining(self.stage.through_proxy("chaos_any"))

    @property
    def actors(self) -> tuple[tuple[str, str, str], ...]:
        return (*ACTORS, *FOR_OTHERS) if self.stage.slices else ACTORS

    def wanted(self) -> list[tuple[str, str, str]]:
        return [actor for actor in self.actors if self.publishing or actor[0] != "publisher"]

    def stop_publishing(self) -> None:
        """End the publishers, and let the consumers go on."""
        self.publishing = False
        for kind, name, _ in self.actors:
            if kind == "publisher" and (process := self._processes.get(name)):
                end(process)

    def stop(self) -> None:
        """End all processes."""
        self.stopping.set()
        for process in self._processes.values():
            end(process)

    def history(self, name: str) -> Path:
        return self.stage.history / f"{name}.jsonl"

    def _start(self, kind: str, name: str, user: str) -> subprocess.Popen[Any]:
        arguments = [kind, name, self.stage.through_proxy(user), str(self.history(name)), str(self.seed)]
        with self.history(name).with_suffix(".log").open("a") as log:
            return subprocess.Popen([sys.executable, "-m", "tools.chaos.actors", *arguments], cwd=ROOT, stderr=log)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process of ours, even one that is stopped."""
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
