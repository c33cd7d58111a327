"""No test hangs: it fails, and shows where each thread was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from tools import ROOT

HANGS = """
import signal
import threading

def wait_in_a_thread():
    threading.Event().wait()

def test_that_hangs():
    {before}
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    threading.Event().wait()

def test_that_passes():
    pass
"""


def run_tests(folder: Path, text: str, **limits: float) -> subprocess.CompletedProcess[str]:
    """Run tests with the settings of this project, but these limits."""
    (folder / "test_limits.py").write_text(text)
    options = [f"-o{name}={seconds}" for name, seconds in limits.items()]
    command = [sys.executable, "-m", "pytest", "-n0", "-pno:cacheprovider", f"-c{ROOT}/pyproject.toml", *options]
    return subprocess.run([*command, folder], capture_output=True, text=True, cwd=folder, timeout=120, check=False)


def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads_and_the_next_runs(tmp_path: Path) -> None:
    done = run_tests(tmp_path, HANGS.format(before=""), timeout=1)
    assert "Failed: Timeout (>1.0s)" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "in wait_in_a_thread" in done.stdout


def test_a_test_whose_main_thread_takes_no_signal_ends_its_process(tmp_path: Path) -> None:
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    done = run_tests(tmp_path, HANGS.format(before=deaf), timeout=1, faulthandler_timeout=2)
    assert done.returncode != 0
    assert "passed" not in done.stdout
    assert "in wait_in_a_thread" in done.stderr
    assert "in test_that_hangs" in done.stderr


def test_no_statement_of_a_test_lasts_forever(conn: psycopg.Connection[Any]) -> None:
    assert conn.execute("SHOW statement_timeout").fetchone() == ("5min",)
