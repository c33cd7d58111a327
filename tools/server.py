"""Starts a private PostgreSQL server in a directory of its own, as a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools import SetupError, server_user
from tools.ports import free_port
from tools.programs import Binaries, installed

_LONGEST_SOCKET_PATH: Final = 100  # the system allows 107 bytes, and the server adds .s.PGSQL.<port>


class Server:
    """A PostgreSQL server of our own: loopback and socket only, superuser `postgres` without a password.

    Starting a running one and stopping a stopped one do nothing. The port stays the same for the life of the
    data unless another process took it. As root the server runs as the user `postgres`, or `nobody` if there is
    none; where that user cannot reach `directory`, the data live under the system's temporary directory.

    It does without fsync: its data outlive a crash of the server, not of the machine.

    :param directory: where data, log and settings go; made when needed.
    """

    def __init__(self, directory: Path) -> None:
        self.wanted = directory
        self.directory = server_user.reachable(directory)
        self.data = self.directory / "data"

    @property
    def binaries(self) -> Binaries:
        """The server's programs."""
        return installed()

    @property
    def port(self) -> int:
        """The TCP port of the last start."""
        return int((self.directory / "port").read_text())

    @property
    def socket_directory(self) -> Path:
        """The directory of the Unix socket: next to the data, or a short path if that one is too long."""
        if len(os.fsencode(self.directory)) + len("/.s.PGSQL.65535.lock") <= _LONGEST_SOCKET_PATH:
            return self.directory
        return server_user.temporary(self.directory)

    def dsn(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """Return the connection URI of a database of this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, with new data if there are none, and wait until it takes connections."""
        if self.is_running():
            return
        self._make_directories()
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        self._write_settings(self._choose_port())
        self._pg_ctl("start", "-w", "-t", "60", "-l", str(self.directory / "server.log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `smart`, `fast`, or `immediate`, which is a crash."""
        if self.is_running():
            self._pg_ctl("stop", "-w", "-t", "60", "-m", mode)

    def destroy(self) -> None:
        """Stop the server and remove its data."""
        self.stop("immediate")
        for directory in (self.directory, self.socket_directory, self.wanted):
            shutil.rmtree(directory, ignore_errors=True)
        if self.directory != self.wanted:
            shutil.rmtree(self.directory.parent, ignore_errors=True)

    def is_running(self) -> bool:
        """Return whether the server process is there."""
        if not (self.data / "postmaster.pid").exists():
            return False
        return self._run("pg_ctl", "-D", str(self.data), "status", check=False).returncode == 0

    def _make_directories(self) -> None:
        self.wanted.mkdir(parents=True, exist_ok=True)
        if self.directory != self.wanted:
            print(f"PostgreSQL's user cannot reach {self.wanted}; its data go to {self.directory}", file=sys.stderr)
            server_user.make_directory(self.directory.parent)
        for directory in (self.directory, self.socket_directory):
            server_user.make_directory(directory)
            server_user.give(directory)

    def _initdb(self) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        self._run("initdb", "-D", str(self.data), *options)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude 'pgqueue.conf'\n")

    def _choose_port(self) -> int:
        port_file = self.directory / "port"
        port = free_port(self.port if port_file.exists() else 0)
        port_file.write_text(str(port))
        return port

    def _write_settings(self, port: int) -> None:
        lines = [f"{name} = '{value}'\n" for name, value in self.settings(port).items()]
        (self.data / "pgqueue.conf").write_text("".join(lines))

    def settings(self, port: int) -> dict[str, str | int]:
        """Return what this server sets apart from the defaults."""
        return {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": str(self.socket_directory),
            "fsync": "off",
            "full_page_writes": "off",
        }

    def _pg_ctl(self, action: str, *options: str) -> None:
        self._run("pg_ctl", "-D", str(self.data), action, *options)

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        folder = self._programs()
        # Into a file, not a pipe: the server inherits it and would keep a pipe open forever.
        with tempfile.TemporaryFile("w+") as output:
            process: subprocess.CompletedProcess[str] = subprocess.run(
                [folder / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory if self.directory.exists() else "/",
                text=True,
                **server_user.arguments(),
            )
            output.seek(0)
            if check and process.returncode:
                raise SetupError(f"{program} {' '.join(arguments)} failed:\n{output.read()}{self._log_tail()}")
        return process

    def _programs(self) -> Path:
        binaries = self.binaries
        if binaries.package is None:
            return binaries.folder
        package = binaries.package
        needed = server_user.reachable_copy(package, package.with_name(f"{package.name}.libs"))
        return needed / binaries.folder.relative_to(package.parent)

    def _log_tail(self) -> str:
        log = self.directory / "server.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-10:]) if log.exists() else ""
