"""Distributions of the package, built as `make dist` builds them, and environments to install them into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tools import ROOT, STATE

UV: Final = STATE / "boot" / "bin" / "uv"


def built(target: str, folder: Path, sources: Path = ROOT) -> Path:
    """Build the `wheel` or the `sdist` of a checkout into a folder, and return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    (file,) = (file for kind in ("*.whl", "*.tar.gz") for file in folder.glob(kind))
    return file


def empty_environment(folder: Path) -> Path:
    """Make an environment with nothing in it, also where one was begun, and return the folder of its programs."""
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    return folder / "bin"
