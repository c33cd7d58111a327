"""Two servers of one queue, a primary and its standby, on two addresses of this machine with one port.

An Airflow connection has one port for all its hosts. Linux has all of 127.0.0.0/8 on its loopback interface.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any, Final

from tools import processes
from tools.ports import free_port
from tools.postgres import Cluster

ADDRESSES: Final = ("127.0.0.1", "127.0.0.2")


class _Node(Cluster):
    """One server of the pair."""

    def __init__(self, directory: Path, address: str, port: int) -> None:
        super().__init__(directory, durable=False, cron_database="postgres")
        self.address = address
        self._own_port = port

    def dsn(self, database: str = "postgres", *, user: str = "postgres") -> str:
        return f"postgresql://{user}@{self.address}:{self._own_port}/{database}"

    def settings(self, port: int) -> dict[str, str | int]:
        return super().settings(port) | {"listen_addresses": self.address}

    def _choose_port(self) -> int:
        (self.directory / "port").write_text(str(self._own_port))
        return self._own_port

    def follow(self, primary: _Node) -> None:
        """Begin anew as the standby of the other."""
        self._make_directories()
        shutil.rmtree(self.data, ignore_errors=True)
        source = ["-h", primary.address, "-p", str(primary.port), "-U", "postgres"]
        self._run("pg_basebackup", "-D", str(self.data), *source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self.start()

    def promote(self) -> None:
        """Make the standby a primary, and wait until it is one."""
        self._pg_ctl("promote", "-w", "-t", "60")

    def freeze(self) -> None:
        """Freeze all processes of the server: the system still accepts connections, but no process replies."""
        processes.send(self._processes(), signal.SIGSTOP)

    def crash(self) -> None:
        """End the server without any care, also a frozen one."""
        if self.is_running():
            processes.send(self._processes(), signal.SIGCONT)
        self.stop("immediate")

    def _processes(self) -> set[int]:
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return {main, *map(int, children)}


class Pair:
    """A primary and its standby, which change places at each failover."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.nodes = [_Node(directory / address, address, self.port) for address in ADDRESSES]

    @property
    def primary(self) -> _Node:
        """The server that takes what is written."""
        return self.nodes[0]

    def dsn(self, database: str) -> str:
        """Return a connection URI of both, which leads to the primary."""
        hosts = ",".join(f"{address}:{self.port}" for address in ADDRESSES)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=2"

    def airflow_connection(self, database: str) -> dict[str, Any]:
        """Return an Airflow connection to both, which leads to the primary."""
        return {
            "conn_type": "pgqueue",
            "host": ",".join(ADDRESSES),
            "port": self.port,
            "login": "postgres",
            "schema": database,
            "extra": {"target_session_attrs": "read-write"},
        }

    def fail_over(self, *, silent: bool) -> None:
        """Lose the primary, which is gone at once or is silent from then on, and promote the standby."""
        lost, other = self.nodes
        if silent:
            lost.freeze()
        else:
            lost.crash()
        other.promote()
        self.nodes.reverse()

    def repair(self) -> None:
        """Let the other server begin anew as the standby, also one that was never started."""
        self.nodes[1].crash()
        self.nodes[1].follow(self.primary)

    def destroy(self) -> None:
        """Stop both and remove their data."""
        for node in self.nodes:
            node.crash()
            node.destroy()
