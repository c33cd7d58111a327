"""Prometheus and its promtool, which read what this project gives them: for the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tools import STATE

_PROGRAMS: Final = ("prometheus", "promtool")
_UNPACKED: Final = STATE / "prometheus"


@cache
def find() -> Path | None:
    """Return the folder of the programs, after unpacking Debian's package if it can be had; None without them.

    The package is not installed: it would start a server, and bring a user and a service.
    """
    if (path := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(path).parent
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    STATE.mkdir(exist_ok=True)
    with (STATE / "prometheus.lock").open("w") as lock:
        # One of all processes fetches it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _UNPACKED.exists():
            _unpack()
    folder = _UNPACKED / "usr" / "bin"
    return folder if all((folder / name).exists() for name in _PROGRAMS) else None


def _unpack() -> None:
    """Unpack the package; leaves an empty folder where there is none, so that it is not asked for again."""
    with tempfile.TemporaryDirectory(dir=STATE) as name:
        place = Path(name)
        if not _fetched(place) and os.geteuid() == 0:
            subprocess.run(["apt-get", "-q", "update"], capture_output=True)
            _fetched(place)
        files = place / "files"
        files.mkdir()
        for package in place.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, files], check=True)
        files.rename(_UNPACKED)


def _fetched(place: Path) -> bool:
    done = subprocess.run(["apt-get", "-q", "download", "prometheus"], cwd=place, capture_output=True)
    return done.returncode == 0
