"""Drivers that stay on the cluster and do one pipeline after the other.

A Spark for each test would take most of the CPU of the tests of faults: two executors and a driver, cold.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.waiting import until
from tools.standalone import Standalone

_PROGRAM: Final = Path(__file__).with_name("resident_program.py")
_SLOW: Final = 180.0  # seconds; a Spark that starts next to others takes its time


class Resident:
    """A driver with an executor of one core on each worker; of two orders the second waits for the first.

    :param dsn: stands in the environment of the driver, as that of `spark-submit` does.
    """

    def __init__(self, cluster: Standalone, name: str, *, dsn: str, conf: dict[str, str]) -> None:
        self._cluster = cluster
        self._home = cluster.home / name
        self._home.mkdir()
        os.mkfifo(self._home / "orders")
        given = {"spark.cores.max": "2"} | conf
        self._process = cluster.submit(name, str(self._home), dsn=dsn, conf=given, application=str(_PROGRAM))

    @cached_property
    def application(self) -> str:
        """The name that Spark gave it."""
        said = self._home / "application"
        until(said.exists, _SLOW, f"the application; see {self._home}.err", process=self._process)
        return said.read_text()

    def run(self, name: str, *arguments: str, dsn: str, file: Path, conf: dict[str, str] | None = None) -> Order:
        """Begin a pipeline, `run("first", "drain", "--queue", "orders")`, whose functions are in a file.

        Without arguments, run the file as a program.

        :param conf: settings of Spark for this order, in place of the driver's own.
        """
        until(lambda: self.application, what="a driver that takes orders")
        order = {"name": name, "arguments": arguments, "dsn": dsn, "file": str(file), "conf": conf or {}}
        with (self._home / "orders").open("w") as pipe:
            pipe.write(json.dumps(order) + "\n")
        return Order(self, self._home / name)

    @property
    def is_alive(self) -> bool:
        """Whether it takes orders."""
        return self._process.poll() is None

    def executors(self) -> list[int]:
        """Return the processes of its executors."""
        return self._cluster.executors(self.application)

    def speculated(self) -> int:
        """Return how many tasks Spark has started a second time so far; a few may not be written down yet."""
        (log,) = (self._cluster.home / "events").glob(f"*{self.application}*")
        events = [line for part in log.glob("events_*") for line in part.read_text().splitlines()]
        return sum('"SparkListenerTaskStart"' in event and '"Speculative":true' in event for event in events)

    def kill(self) -> None:
        """Kill it with what it has begun."""
        self._cluster.kill(self._process)


@dataclass(frozen=True, slots=True)
class Order:
    """What a resident was told to do."""

    resident: Resident
    place: Path

    @property
    def has_ended(self) -> bool:
        """Whether it was done, well or not."""
        return self.place.with_suffix(".status").exists()

    def wait(self) -> int:
        """Return the exit status of the command when it has ended."""
        until(lambda: self.has_ended or not self.resident.is_alive, _SLOW, f"{self.place.name}")
        return int(self.place.with_suffix(".status").read_text())

    @property
    def summary(self) -> dict[str, Any]:
        """What it printed at its end."""
        found: dict[str, Any] = json.loads(self.place.with_suffix(".out").read_text().splitlines()[-1])
        return found
