"""The private PostgreSQL of the demo and of the tests, with pg_cron where there is one."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from tools import QUEUE_DATABASE, STATE, SetupError, run_main, server_user
from tools.binaries import embedded, find
from tools.programs import Binaries
from tools.server import Server

SETTINGS: Final[Mapping[str, str | int]] = {
    "max_connections": 300,
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "jit": "off",
    "timezone": "UTC",
    "log_min_messages": "warning",
}


# A test clones 10 MB in 460 files: a busy disk takes a second for that, memory never does.
MEMORY: Final = Path("/dev/shm")
ENOUGH: Final = 6 << 30  # bytes
FLEETING: Final = "pgqueue-tests-"


class Cluster(Server):
    """The server of the demo or of a test session, with pg_cron where there is one.

    :param directory: where data, log and settings go; made when needed.
    :param kind: `auto`, `debian` or `embedded`; the default is the environment variable PG, else `auto`.
    :param durable: False turns fsync off: safe against a crash of the server, not of the machine.
    :param cron_database: the one database in which pg_cron runs.
    :param statement_timeout: how long a statement of a session may take that sets nothing else; 0 is forever.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kind: str | None = None,
        durable: bool = True,
        cron_database: str = QUEUE_DATABASE,
        statement_timeout: str = "0",
    ) -> None:
        super().__init__(directory)
        self.durable = durable
        self.kind = kind or os.environ.get("PG") or "auto"
        self.cron_database = cron_database
        self.statement_timeout = statement_timeout

    @property
    def binaries(self) -> Binaries:
        """The server's programs; finding them may install Debian's packages."""
        return find(self.kind)

    def start(self) -> None:
        """Start the server, with new data if there are none, and wait until it takes connections."""
        self._refuse_another_version()
        super().start()

    def settings(self, port: int) -> dict[str, str | int]:
        """Return what this cluster sets apart from the defaults."""
        durable = {"fsync": "on", "full_page_writes": "on"} if self.durable else {}
        limits = {"statement_timeout": self.statement_timeout}
        return super().settings(port) | durable | dict(SETTINGS) | limits | self._cron_settings()

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again on the same port; all sessions are lost."""
        self.stop(mode)
        self.start()

    def has_database(self, name: str) -> bool:
        """Return whether the server has this database."""
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            return conn.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount == 1

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database unless it exists, and return its URI."""
        if not self.has_database(name):
            # A copy of the files is cheaper than one through the log; the price, a checkpoint, is small on this server.
            command = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
            self._execute(command, sql.Identifier(name), sql.Identifier(template))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database with all its sessions, if it exists."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", sql.Identifier(name))

    def _execute(self, statement: LiteralString, *names: sql.Identifier) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(sql.SQL(statement).format(*names))

    def _refuse_another_version(self) -> None:
        version_file = self.data / "PG_VERSION"
        if version_file.exists() and int(version_file.read_text()) != self.binaries.version:
            raise SetupError(
                f"the data in {self.data} belong to PostgreSQL {version_file.read_text().strip()}, "
                f"PG={self.kind} means {self.binaries.version}. Remove them with `make clean`."
            )

    def _cron_settings(self) -> dict[str, str | int]:
        if not self.binaries.has_cron:
            return {}
        # Through the socket: with background workers one long job would hold up all others.
        return cron_settings(self.cron_database) | {"cron.host": str(self.socket_directory)}


def fleeting_place() -> Path:
    """Return where the clusters of this process's tests go: in memory if there is room."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH
    return (MEMORY if roomy else STATE / "tests") / f"{FLEETING}{os.getpid()}"


def fleeting_clusters() -> list[Path]:
    """Return the directories of the clusters of all tests that run, or were killed."""
    return [found for place in (MEMORY, STATE / "tests") for found in place.glob(f"{FLEETING}*")]


def cron_settings(database: str) -> dict[str, str | int]:
    """Return what every server of this project sets for pg_cron."""
    return {"shared_preload_libraries": "pg_cron", "cron.database_name": database}


def demo_cluster() -> Cluster:
    """Return the cluster of `make demo` and `make up`, started or not; each kind of server has its own."""
    found = find(os.environ.get("PG") or "auto").kind
    return Cluster(STATE / found / "postgres", kind=found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.postgres", description=__doc__)
    parser.add_argument("action", choices=["stop", "destroy"])
    action = parser.parse_args().action
    # Those that `demo_cluster` made before, without installing anything.
    clusters = [Cluster(STATE / kind / "postgres", kind=kind) for kind in ("debian", "embedded")]
    for cluster in clusters:
        if cluster.data.exists():
            cluster.stop() if action == "stop" else cluster.destroy()
    if action == "destroy" and (package := embedded().package):
        # What `reachable_copy` made of the package.
        shutil.rmtree(server_user.temporary(package.parent), ignore_errors=True)


if __name__ == "__main__":
    run_main(main)
