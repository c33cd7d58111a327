"""Gets PostgreSQL's JDBC driver, which Spark does not bring."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tools import SetupError
from tools.binaries import unpacked

_PACKAGE: Final = "libpostgresql-jdbc-java"
_JAR: Final = "usr/share/java/postgresql.jar"


def jdbc_driver() -> Path:
    """Return the jar in `JDBC_DRIVER`, else the one that Debian's package has installed, else that package, unpacked.

    SetupError, which says what to do, if none is there and none can be fetched.
    """
    if given := os.environ.get("JDBC_DRIVER"):
        if not Path(given).is_file():
            raise SetupError(f"JDBC_DRIVER names {given}, which is not there. Give the path of a jar.")
        return Path(given)
    installed = Path("/", _JAR)
    jar = installed if installed.exists() else unpacked(_PACKAGE) / _JAR
    if jar.exists():
        return jar
    raise SetupError(
        f"PostgreSQL's JDBC driver is neither installed nor can it be fetched. As root: apt-get install {_PACKAGE}. "
        "Or give the path of its jar: make bench-spark JDBC_DRIVER=/path/to/postgresql.jar"
    )
