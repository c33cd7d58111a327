"""Runs the tests that were red once more, when nothing else runs: `python -m tools.again CACHE [pytest's options]`.

A test that is green then did not find enough of a machine that others used, or has a race. It is named as unsteady, and
the run counts as green. More than a few red tests are a defect and are not tried again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST: Final = 5


def again(cache: Path, options: Sequence[str] = ()) -> int:
    """Return 0 if all tests that pytest noted as red in this cache are green now, else 1."""
    file = cache / "v" / "cache" / "lastfailed"
    red = list(json.loads(file.read_text())) if file.exists() else []
    if not 0 < len(red) <= MOST:
        return 1
    print(f"\n{len(red)} red; once more, with nothing beside:", flush=True)
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *options, *red]
    if subprocess.run(command, check=False).returncode:
        return 1
    print("UNSTEADY, red at first:", *red, sep="\n    ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(again(Path(sys.argv[1]), sys.argv[2:]))
