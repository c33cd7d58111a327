"""A Spark cluster of a master and two workers, on which a driver drains slice after slice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

from tools.chaos import drains
from tools.standalone import Standalone

QUEUE: Final = "d_slices"
SLICE: Final = 200  # messages


class Slices:
    """One driver at a time, which is started again when it was killed.

    :param directory: the home of the cluster.
    :param history: the folder of the histories.
    """

    def __init__(self, directory: Path, history: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._history = history
        self._cluster = Standalone(directory)
        self._starts = 0
        self._driver: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Start the cluster."""
        (self._history / "slices.jsonl").touch()
        # Inherited by the driver; the executors get it from Spark.
        os.environ[drains.HISTORY] = str(self._history)
        self._cluster.start()

    def stop(self) -> None:
        """End the cluster and what runs on it."""
        self._cluster.stop()

    def keep_draining(self, dsn: str) -> int:
        """Start the driver unless it runs; return 1 if it had ended, else 0."""
        if self._driver is not None and self._driver.poll() is None:
            return 0
        had_ended = self._driver is not None
        if self._driver is not None:
            self._cluster.forget(self._driver)
        self._starts += 1
        self._driver = self._cluster.submit(
            f"driver-{self._starts}", QUEUE, str(SLICE),
            dsn=dsn, functions=Path(drains.__file__), application=drains.__file__,
            conf={f"spark.executorEnv.{drains.HISTORY}": str(self._history)},
        )  # fmt: skip
        return int(had_ended)

    def kill_an_executor(self, chance: random.Random) -> bool:
        """Kill one of the JVMs in which tasks run, if there is one."""
        executors = self._cluster.executors()
        if executors:
            os.kill(chance.choice(executors), signal.SIGKILL)
        return bool(executors)

    def kill_the_driver(self) -> bool:
        """Kill the driver with its JVM, if one runs."""
        if self._driver is None or self._driver.poll() is not None:
            return False
        self._cluster.kill(self._driver)
        return True
