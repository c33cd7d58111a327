"""The server, the database and the queues that a run uses, and the proxy in front of them."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import psycopg

from airflow_provider_pgqueue.core import migrate, run, verbs
from airflow_provider_pgqueue.core.errors import QueueNotFound
from tools.chaos import leases
from tools.chaos.airflow import Airflow
from tools.chaos.proxy import Proxy
from tools.chaos.slices import Slices
from tools.postgres import Cluster

DATABASE: Final = "chaos"
# No message may die of faults alone, except where that is what is looked at.
MANY: Final = 1000
QUEUES: Final = {
    "a_orders": f"max_attempts => {MANY}",
    "a_short": "max_attempts => 2",
    "a_groups": f"max_attempts => {MANY}, on_dead_head => 'skip'",
    "a_effects": f"max_attempts => {MANY}",
    "b_orders": f"max_attempts => {MANY}, notify => 'gated'",
    "b_dedup": f"max_attempts => {MANY}",
    leases.LIMITED: f"max_attempts => {MANY}, {leases.POLICY}",
    "a_turns": f"max_attempts => {MANY}, fair_by => 'topic'",
    "a_long": f"max_attempts => {MANY}",
    "default": f"max_attempts => {MANY}",
    "volatile": f"max_attempts => {MANY}",
    "c_orders": f"max_attempts => {MANY}",
    "d_slices": f"max_attempts => {MANY}",
    "d_watched": f"max_attempts => {MANY}",
    "d_waited": f"max_attempts => {MANY}",
    "d_deferred": f"max_attempts => {MANY}",
}
GRANTS: Final = {
    "chaos_a": [q for q in QUEUES if q[:2] == "a_"] + ["volatile"],
    "chaos_b": [q for q in QUEUES if q[:2] == "b_"],
}


class Stage:
    """Everything that a run needs and removes at its end.

    :param directory: where data, histories and the page go.
    :param megabytes: the size of the disk of the database, which is filled now and then.
    :param kind: which PostgreSQL, as for Cluster.
    :param with_others: also a real Airflow and a Spark cluster.
    """

    def __init__(
        self, directory: Path, *, megabytes: int = 256, kind: str | None = None, with_others: bool = False
    ) -> None:
        self.directory, self.megabytes = directory, megabytes
        self.cluster = Cluster(directory / "postgres", kind=kind, durable=False)
        self.small_disk: Path | None = None
        self.proxy = Proxy(0)
        self.airflow = Airflow(directory / "airflow", kind=kind) if with_others else None
        self.slices = Slices(directory / "spark", self.history) if with_others else None

    def __enter__(self) -> Stage:
        self._remove()  # what a killed run left
        self.cluster.start()
        self._mount()
        if self.small_disk:
            with psycopg.connect(self.cluster.dsn(), autocommit=True) as conn:
                conn.execute(f"CREATE TABLESPACE small LOCATION '{self.small_disk / 'space'}'".encode())
                conn.execute(f"CREATE DATABASE {DATABASE} TABLESPACE small".encode())
        else:
            self.cluster.create_database(DATABASE)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            migrate(conn)
            conn.execute("CREATE TABLE public.effect (k text)")
            conn.execute(leases.LOG.encode())
        self.create_queues()
        self.proxy.target = self.cluster.port
        self.proxy.start()
        if self.slices:
            self.slices.start()
        if self.airflow:
            self.airflow.start(self.through_proxy("chaos_any"), self.history)
        return self

    def __exit__(self, *_: object) -> None:
        if self.airflow:
            self.airflow.stop()
        if self.slices:
            self.slices.stop()
        self.proxy.stop()
        self._remove()

    def _remove(self) -> None:
        self.cluster.stop("immediate")
        if self._disk.is_mount():
            subprocess.run(["umount", "-l", str(self._disk)], check=False)
        self.cluster.destroy()

    @property
    def history(self) -> Path:
        """The folder of the histories."""
        return self.directory / "history"

    @property
    def dsn(self) -> str:
        """The URI next to the proxy, as a superuser."""
        return self.cluster.dsn(DATABASE)

    def through_proxy(self, user: str) -> str:
        """The URI that the load uses."""
        return f"postgresql://{user}@127.0.0.1:{self.proxy.port}/{DATABASE}"

    def create_queues(self) -> None:
        """Create what is missing of queues and teams."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for queue, policy in QUEUES.items():
                arguments = f"'{queue}'" + (f", {policy}" if policy else "")
                conn.execute(f"SELECT messages.create_queue({arguments})".encode())
            for role in (*GRANTS, "chaos_any"):
                with suppress(psycopg.errors.DuplicateObject):
                    conn.execute(f"CREATE ROLE {role} LOGIN".encode())
            for role, queues in GRANTS.items():
                for queue in queues:
                    for privilege in ("publish", "consume"):
                        with suppress(QueueNotFound):
                            run(conn, verbs.grant_queue(queue, role, privilege))
            conn.execute(
                "GRANT messages_publisher, messages_consumer, messages_raw, messages_maintenance, messages_pipeline,"
                " messages_reader TO chaos_any"
            )
            conn.execute("GRANT INSERT ON public.effect TO chaos_a")

    @property
    def _disk(self) -> Path:
        return self.cluster.directory / "small"

    def _mount(self) -> None:
        """Put the database on a disk that can be filled, if we may mount one."""
        disk = self._disk
        disk.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self.megabytes}m", "tmpfs", str(disk)],
            check=False,
            capture_output=True,
        )
        if done.returncode:
            return
        from tools import server_user

        space = disk / "space"
        space.mkdir()
        for each in (disk, space):
            server_user.give(each)
        self.small_disk = disk
