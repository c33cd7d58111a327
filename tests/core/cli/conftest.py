"""Runs the command line: in this process for speed, and as a program where a process matters."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgqueue.cli.program import run_program
from tools import ROOT


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status in (0, 1), self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Pgqueue = Callable[..., Ended]


def program_folder(parent: Path) -> Path:
    """Make a folder for PATH in which the program `pgqueue` of this checkout is."""
    folder = parent / "bin"
    folder.mkdir()
    (folder / "pgqueue").write_text(f'#!/bin/sh\nexec {sys.executable} -m airflow_provider_pgqueue.cli "$@"\n')
    (folder / "pgqueue").chmod(0o755)
    return folder


@contextmanager
def killed_on_failure(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that leads a session, and its children, if the test fails; Popen would wait for it forever."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@pytest.fixture
def run_pgqueue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pgqueue:
    """Run a command in this process, where standard input is never a terminal."""

    def call(*arguments: str, stdin: str | bytes = "") -> Ended:
        content = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        capsys.readouterr()
        status = run_program(arguments)
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return call


@pytest.fixture
def pgqueue(dsn: str, monkeypatch: pytest.MonkeyPatch, run_pgqueue: Pgqueue) -> Pgqueue:
    """Run a command on the test's database."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    return run_pgqueue


Program = Callable[..., AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture
def program() -> Program:
    """Start a command as a program of its own: `with program("worker", …, dsn=dsn) as process`."""

    @contextmanager
    def start(*arguments: str, dsn: str = "", **options: Any) -> Iterator[subprocess.Popen[str]]:
        environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-m", "airflow_provider_pgqueue.cli", *arguments]
        process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **(pipes | options))
        with process, killed_on_failure(process):
            yield process

    return start
