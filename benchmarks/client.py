"""Python clients as processes of their own: start several, let them begin together, gather what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from tools import ROOT

Result = Any  # whatever JSON the role printed


class Client:
    """One process that plays a role of `roles`.

    It says `ready` when it is connected, waits for the word to begin, and prints its result as JSON.

    :param module: where the role is, if it is none of `roles`.
    """

    def __init__(self, role: str, dsn: str, options: Mapping[str, Any], module: str = "benchmarks.roles") -> None:
        self.role = role
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, role, dsn, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._in, self._out = _open(self._process.stdin), _open(self._process.stdout)

    def write(self, word: str) -> None:
        """Send a line: the first one begins the work."""
        self._in.write(f"{word}\n")
        self._in.flush()

    def wait_until_ready(self) -> None:
        """Return when it is connected and prepared."""
        if self._out.readline() != "ready\n":
            raise RuntimeError(f"the client {self.role} ended before it began")

    def result(self) -> Result:
        """Wait for its end and return what it printed."""
        said = self._out.read()
        if self._process.wait():
            raise RuntimeError(f"the client {self.role} ended with {self._process.returncode}")
        return json.loads(said)

    def kill(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise RuntimeError("the process was started without a pipe")
    return pipe


@contextmanager
def clients(
    role: str, dsn: str, count: int = 1, *, module: str = "benchmarks.roles", **options: Any
) -> Iterator[list[Client]]:
    """Start clients and wait until all are ready."""
    started = [Client(role, dsn, options, module) for _ in range(count)]
    try:
        for client in started:
            client.wait_until_ready()
        yield started
    finally:
        for client in started:
            client.kill()


def run_clients(role: str, dsn: str, count: int = 1, **options: Any) -> list[Result]:
    """Let clients work at the same time and return what each measured."""
    with clients(role, dsn, count, **options) as started:
        for client in started:
            client.write("go")
        return [client.result() for client in started]
