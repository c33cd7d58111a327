"""PgBouncer in transaction mode, in front of the PostgreSQL of the tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tools import SetupError, server_user
from tools.binaries import program
from tools.ports import free_port

_SETTINGS: Final = """
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
{more}
"""
_PATIENCE: Final = 30.0  # seconds until it takes connections


def find() -> str | None:
    """Return the path of the program, after installing Debian's package if that is allowed and needed."""
    return program("pgbouncer", "pgbouncer")


class Pooler:
    """A PgBouncer on the loopback address, with a pool of three sessions for each database of a server.

    :param directory: where its settings and its log go; the server's user must reach it.
    :param server_port: the port of the PostgreSQL server behind it.
    :param more: settings of the section [pgbouncer]; the last of a name counts.
    """

    def __init__(self, directory: Path, server_port: int, more: str = "") -> None:
        self.port = free_port()
        self._directory = directory
        self._server_port = server_port
        self._more = more
        self._process: subprocess.Popen[Any] | None = None

    def dsn(self, direct: str) -> str:
        """Return the connection string that leads through the pooler to the database of a direct one."""
        return make_conninfo("", **(conninfo_to_dict(direct) | {"port": self.port}))

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        pgbouncer = find()
        if pgbouncer is None:
            raise SetupError("PgBouncer is not installed. Install it as root: apt-get install pgbouncer.")
        self._directory.mkdir(exist_ok=True)
        users, settings = self._directory / "users.txt", self._directory / "pgbouncer.ini"
        users.write_text('"postgres" ""\n')
        settings.write_text(
            _SETTINGS.format(server_port=self._server_port, port=self.port, users=users, more=self._more)
        )
        with (self._directory / "pgbouncer.log").open("w") as log:
            self._process = subprocess.Popen(
                [pgbouncer, str(settings)], cwd="/", stdout=log, stderr=log, **server_user.arguments()
            )
        until = time.monotonic() + _PATIENCE
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() > until:
                raise SetupError(f"PgBouncer did not start:\n{(self._directory / 'pgbouncer.log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it, and cut all connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _takes_connections(self) -> bool:
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres").close()
        except psycopg.OperationalError:
            return False
        return True
