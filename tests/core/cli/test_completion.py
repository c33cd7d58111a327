"""The completion of the documentation, in a real bash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text()
# What bash does when Tab is pressed behind the last word.
TAB = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p pgqueue
"$(complete -p pgqueue | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" pgqueue
printf '%s\\n' "${COMPREPLY[@]}"
"""


def press_tab(tmp_path: Path, *words: str) -> list[str]:
    """Set bash up as the page says, and return what Tab offers behind these words."""
    (setup,) = re.findall(r"^<!-- shell: completion -->\n```sh\n(.*?)^```$", PAGE, re.M | re.S)
    program = tmp_path / "pgqueue"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m airflow_provider_pgqueue.cli "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "--noprofile", "--norc", "-eu", "-c", setup + TAB, "bash", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    known, *offered = ended.stdout.splitlines()
    assert known.endswith(" pgqueue")
    return offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pgqueue", "pu"], ["publish", "purge"]),
        (["pgqueue", "queues", "re"], ["resume"]),
        (["pgqueue", "queues", "create", "orders", "--not"], ["--notify", "--not-paused"]),
        (["pgqueue", "queues", "create", "orders", "--notify", ""], ["always", "gated", "off"]),
        (["pgqueue", "nope"], [""]),
    ],
    ids=lambda words: " ".join(words),
)
def test_tab_completes_commands_options_and_choices(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    assert press_tab(tmp_path, *words) == offered
