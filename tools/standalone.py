"""A standalone cluster of Spark on loopback: a master and two workers from the wheel, and spark-submit to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from airflow_provider_pgqueue.spark import __main__ as command_line
from airflow_provider_pgqueue.spark.package import package

SPARK = Path(_find_spark_home())
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_APPLICATION = re.compile(rb"CoarseGrainedExecutorBackend.*--app-id\0([^\0]+)", re.S)


class Standalone:
    """Processes that are all gone after `stop`; `home` has their logs and the work of the executors.

    The workers have two addresses: Spark does not try a task a second time on the same host.

    :param cores: of each worker: with one, an application that takes both has the cluster for itself.
    :param java_options: what each Java process gets, drivers and executors too.
    """

    def __init__(self, home: Path, *, cores: int = 1, java_options: str = "") -> None:
        self.home = home
        self.cores = cores
        self.java_options = java_options
        self._processes: list[subprocess.Popen[bytes]] = []
        self._zip = package(home / "pgqueue.zip")

    def start(self) -> None:
        """Start the master and the workers; return when they know each other."""
        self._start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1")
        self._url = self._logged("master", _MASTER)[1]
        for address in ("127.0.0.1", "127.0.0.2"):
            work = ("--work-dir", str(self.home / f"work-{address}"))
            size = ("--host", address, "--cores", str(self.cores), "--memory", f"{512 * self.cores}m")
            self._start(address, address, "worker.Worker", *size, *work, self._url)
        for address in ("127.0.0.1", "127.0.0.2"):
            self._logged(address, re.compile("Successfully registered with master"))

    def submit(
        self,
        name: str,
        *arguments: str,
        dsn: str,
        functions: Path | None = None,
        conf: dict[str, str] | None = None,
        application: str = command_line.__file__,
    ) -> subprocess.Popen[bytes]:
        """Start a pipeline, or another program, by spark-submit.

        Its output is in `NAME.out` and `NAME.err`, its events in `events`.
        """
        events = self.home / "events"
        events.mkdir(exist_ok=True)
        given = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": self.java_options,
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        } | (conf or {})
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self._url]
        command += [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
        files = ",".join(str(file) for file in (self._zip, functions) if file is not None)
        command += ["--py-files", files, application, *arguments]
        return self._open(name, command, self._environment("127.0.0.1") | {"PGQUEUE_DSN": dsn})

    @property
    def workers(self) -> list[int]:
        """The processes under which the executors run."""
        return [process.pid for process in self._processes[1:3]]

    def executors(self, application: str = "") -> list[int]:
        """Return the processes of the executors of an application, by default of the newest."""
        ours = {process.pid for process in self._processes}
        found: dict[str, list[int]] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                said = _APPLICATION.search((process / "cmdline").read_bytes())
                if said and os.getpgid(int(process.name)) in ours:
                    found.setdefault(said[1].decode(), []).append(int(process.name))
        return found.get(application or max(found, default=""), [])

    def stop(self) -> None:
        """End everything, executors and their Python processes too."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            self.kill(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Forget what was submitted and has ended, with whatever it left."""
        self.kill(process)
        self._processes.remove(process)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, address: str, kind: str, *arguments: str) -> None:
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--port", "0", "--webui-port", "0", *arguments]
        self._open(name, command, self._environment(address) | {"SPARK_DAEMON_MEMORY": "256m"})

    def _open(self, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.out").open("wb") as out, (self.home / f"{name}.err").open("wb") as err:
            process = subprocess.Popen(
                command, stdout=out, stderr=err, env=environment, cwd=self.home, start_new_session=True
            )
        self._processes.append(process)
        return process

    def _environment(self, address: str) -> dict[str, str]:
        # Not the checkout's: the package comes from the zip.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "PYTHON", "SPARK_"))}
        own = {"SPARK_SUBMIT_OPTS": self.java_options, "SPARK_DAEMON_JAVA_OPTS": self.java_options}
        own |= {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": address}
        return kept | own | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}

    def _logged(self, name: str, what: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + 180
        while not (found := what.search((self.home / f"{name}.err").read_text())):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} of the cluster did not say {what.pattern!r}")
            time.sleep(0.1)
        return found
