"""The one server that everybody is measured on, and a database of its own for each peer and case."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from tools import QUEUE_DATABASE, STATE, SetupError
from tools.binaries import debian
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
PREFIX: Final = "bench_"
SETTINGS: Final[Mapping[str, str | int]] = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    # Kept and used again, so that no run pays for making segments.
    "min_wal_size": "3GB",
    "checkpoint_timeout": "30min",
    "synchronous_commit": "off",
    "fsync": "on",
    "jit": "off",
}


class Server(Cluster):
    """A cluster with the settings of the benchmarks; rows that say so turn synchronous_commit on by session."""

    def __init__(self, kind: str) -> None:
        super().__init__(STATE / "bench" / kind, kind=kind, durable=True)

    def settings(self, port: int) -> dict[str, str | int]:
        """Return what this server sets apart from the defaults."""
        return super().settings(port) | dict(SETTINGS)

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Start without any database of an earlier run, and stop at the end; SetupError during another run."""
        with self._alone():
            self.start()
            try:
                self.create_database(QUEUE_DATABASE)
                self.drop_all()
                yield self
                self.drop_all()
            finally:
                self.stop()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.wanted.parent.mkdir(parents=True, exist_ok=True)
        with self.wanted.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SetupError("another benchmark is running on this server; wait for its end") from None
            yield

    def drop_all(self) -> None:
        """Drop every database that a benchmark made."""
        with self.connect("postgres") as conn:
            names = [row[0] for row in conn.execute("SELECT datname FROM pg_database")]
        for name in names:
            if name.startswith(PREFIX):
                self.drop_database(name)

    def connect(self, database: str, **arguments: Any) -> Connection:
        """Open an autocommit session."""
        return psycopg.connect(self.dsn(database), autocommit=True, **arguments)

    @contextmanager
    def database(self, name: str, peer: str, install: Callable[[Connection], None]) -> Iterator[str]:
        """A database in which the peer is installed, cloned from a template and dropped at the end."""
        template, name = f"{PREFIX}template_{peer}", f"{PREFIX}{name}"
        if not self.has_database(template):
            self.create_database(template)
            with self.connect(template) as conn:
                install(conn)
        self.drop_database(name)
        self.create_database(name, template=template)
        try:
            yield name
        finally:
            self.drop_database(name)

    def cpu_seconds(self) -> float:
        """Return what CPU its processes have used since it started, the ended ones too."""
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        while True:
            try:
                # The postmaster's children_user and children_system are those of the ended ones.
                return sum(sum(process.cpu_times()[:4]) for process in (postmaster, *postmaster.children()))
            except psutil.NoSuchProcess:
                # One ended between the two: its time is now the postmaster's. A server that is gone is an error.
                if not postmaster.is_running():
                    raise

    def version(self) -> str:
        """Return the version that the server says it has."""
        with self.connect("postgres") as conn:
            return str(conn.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]


def pgbench() -> Path:
    """Return the load generator; Debian's, for both kinds of server, because the embedded one has none."""
    for binaries in debian():
        if (binaries.folder / "pgbench").exists():
            return binaries.folder / "pgbench"
    if found := shutil.which("pgbench"):
        return Path(found)
    raise SetupError("pgbench is not installed. As root: apt-get install postgresql-15")
