"""The completion of the documentation, in a real bash."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.core.cli.conftest import program_folder
from tools import ROOT

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text()
# What bash does when Tab is pressed behind the last word of each line.
TAB = """
for line; do
    eval "COMP_WORDS=($line)"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    "$(complete -p pgqueue | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" pgqueue
    echo "${COMPREPLY[*]:-}"
done
"""
OFFERED = {
    "pgqueue pu": "publish purge",
    "pgqueue queues re": "resume",
    "pgqueue queues create orders --not": "--notify --not-paused",
    "pgqueue queues create orders --notify ''": "always gated off",
    "pgqueue nope": "",
}


def test_tab_completes_commands_options_and_choices(tmp_path: Path) -> None:
    (setup,) = re.findall(r"^<!-- shell: completion -->\n```sh\n(.*?)^```$", PAGE, re.M | re.S)
    environment = os.environ | {"PATH": f"{program_folder(tmp_path)}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "--noprofile", "--norc", "-eu", "-c", setup + TAB, "bash", *OFFERED]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert dict(zip(OFFERED, ended.stdout.splitlines(), strict=True)) == OFFERED
