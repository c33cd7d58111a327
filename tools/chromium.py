"""A Chromium without a window: it draws pictures, and runs the page for the tests."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tools import SetupError
from tools.binaries import install

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE: Final = 120.0  # seconds, on a loaded machine


@cache
def find() -> str | None:
    """Return the path of the program, after installing Debian's package if that is allowed and needed."""
    return _found() or (_found() if install(lambda: ["chromium"]) else None)


def _found() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def draw(address: str, file: Path, *, width: int, height: int, dark: bool = False) -> None:
    """Write the picture of a page as PNG."""
    colours = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(*colours, f"--window-size={width},{height}", f"--screenshot={file}", address)


def document(address: str) -> str:
    """Return the HTML of a page after its scripts ran for some seconds, of the page's own time."""
    return _run("--dump-dom", address)


def _run(*arguments: str) -> str:
    program = find()
    if program is None:
        raise SetupError("there is no Chromium. Install it as root: apt-get install chromium.")
    # The sandbox of Chromium refuses root, and the shared memory of a container is too small for it.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [program, *options, f"--user-data-dir={profile}", "--virtual-time-budget=6000", *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
    return done.stdout
