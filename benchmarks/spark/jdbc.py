"""Gets PostgreSQL's JDBC driver, which Spark does not bring."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tools import STATE, SetupError
from tools.binaries import install

_PACKAGE: Final = "libpostgresql-jdbc-java"
_JAR: Final = Path("usr/share/java/postgresql.jar")
_UNPACKED: Final = STATE / "bench" / "jdbc"


def jdbc_driver() -> Path:
    """Return the jar in `JDBC_DRIVER`, else the one that Debian's package has installed, else that package, unpacked.

    SetupError, which says what to do, if none is there and none can be fetched.
    """
    if given := os.environ.get("JDBC_DRIVER"):
        if not Path(given).is_file():
            raise SetupError(f"JDBC_DRIVER names {given}, which is not there. Give the path of a jar.")
        return Path(given)
    for folder in (Path("/"), _UNPACKED):
        if (folder / _JAR).exists():
            return folder / _JAR
    if _unpack():
        return _UNPACKED / _JAR
    if install(lambda: [_PACKAGE]):
        return Path("/") / _JAR
    raise SetupError(
        f"PostgreSQL's JDBC driver is neither installed nor can it be fetched. As root: apt-get install {_PACKAGE}. "
        "Or give the path of its jar: make bench-spark JDBC_DRIVER=/path/to/postgresql.jar"
    )


def _unpack() -> bool:
    """Fetch Debian's package and unpack it, which needs no root; return whether that worked."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["apt-get", "-q", "download", _PACKAGE]
        if subprocess.run(fetch, cwd=folder, capture_output=True).returncode:
            return False
        (package,) = Path(folder).glob("*.deb")
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        return not subprocess.run(["dpkg-deb", "-x", package, _UNPACKED]).returncode
