"""The shell blocks of the documentation, executed: three shells on one database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.cli.program import COMMANDS
from tests.core.cli.conftest import killed_on_failure, program_folder
from tools import ROOT
from tools.postgres import Cluster

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text()
Shell = Callable[..., subprocess.Popen[str]]
# What `doctor` finds on the server of the tests, which is not durable.
UNSAFE = (["warning", "settings"], ["fix", "set"])


def blocks(page: str, shell: str) -> list[str]:
    return re.findall(rf"^<!-- shell: {shell} -->\n```sh\n(.*?)^```$", page, re.M | re.S)


@pytest.fixture
def shell(tmp_path: Path, cluster: Cluster, empty_dsn: str) -> Shell:
    """Start a shell in which `pgqueue` and `psql` are there, in the directory of handlers.py."""
    (handlers,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "handlers.py").write_text(handlers)
    path = f"{program_folder(tmp_path)}:{cluster.binaries.folder}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PGQUEUE_DSN": empty_dsn, "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}

    def start(code: str) -> subprocess.Popen[str]:
        command = ["sh", "-eu", "-c", code]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, start_new_session=True, **pipes)

    return start


def finish(process: subprocess.Popen[str]) -> str:
    with process, killed_on_failure(process):
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def printed(shell: str) -> str:
    """Return what the page shows below the only block of this shell that has an output."""
    (text,) = re.findall(rf"^<!-- shell: {shell} -->\n```sh\n[^`]*```\n\n```text\n(.*?)^```$", PAGE, re.M | re.S)
    return str(text)


def words(text: str) -> list[list[str]]:
    """Return the words of each line, without times, numbers, rules, and what names a process or a cause."""
    lines = (re.sub(r"\S*@\S+|\b\w*\d\w*\b|-{2,}", "", line) for line in text.splitlines())
    return [found for line in lines if (found := re.findall(r"[A-Za-z_]{2,}", line))]


def walk(shell: Shell) -> tuple[str, str]:
    """Follow the page: a worker, a publisher, a look at the archive; what the worker and the look printed."""
    (first,), (work,), (publish,), (look,) = (blocks(PAGE, name) for name in ("first", "worker", "publisher", "looker"))
    assert words(finish(shell(first)).partition("\n")[2]) == words(printed("first"))
    worker = shell(work)
    with worker, killed_on_failure(worker):
        assert words(finish(shell(publish))) == words(printed("publisher"))
        shown = finish(shell(look))
        os.killpg(worker.pid, signal.SIGINT)
        packed, err = worker.communicate(timeout=30)
    assert worker.returncode in (0, -signal.SIGINT), err
    return packed, shown


def test_the_three_shells_of_the_documentation_work(shell: Shell, empty_dsn: str) -> None:
    packed, shown = walk(shell)
    assert words(shown) == words(printed("looker"))
    assert re.findall(r"parcels (\w+)", shown) == ["success", "success", "success", "rejected"]
    assert "(4 rows)" in shown
    assert packed.startswith("packing order 7\npacking order 8\npacking order 9\n")
    assert words(packed) == words(printed("worker"))
    after = re.findall(r"^<!-- shell: after -->\n```sh\n(.*?)^```\n\n(?:```text\n(.*?)^```)?", PAGE, re.M | re.S)
    for code, text in after:
        found = words(finish(shell(code)))
        assert [line for line in found if line[:2] not in UNSAFE] == words(text)
    with psycopg.connect(empty_dsn) as conn:
        rows = conn.execute(
            "SELECT result, dismissed_for, count(*) FROM messages.archive_overview GROUP BY 1, 2 ORDER BY 1"
        ).fetchall()
    assert rows == [("rejected", "the shop corrected it", 1), ("success", None, 3)]


def test_each_command_is_in_the_documentation() -> None:
    (commands,) = re.findall(r"^## Commands\n(.*?)^## ", PAGE, re.M | re.S)
    assert {name for name in COMMANDS if f"`{name}`" not in commands} == set()
