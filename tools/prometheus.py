"""Prometheus and its promtool, which read what this project gives them: for the tests."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from tools.binaries import unpacked


@cache
def find() -> Path | None:
    """Return the folder of the programs, those of Debian's package if it can be had; None without them."""
    if (path := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(path).parent
    folder = unpacked("prometheus") / "usr" / "bin"
    return folder if all((folder / name).exists() for name in ("prometheus", "promtool")) else None
