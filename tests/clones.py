"""Databases for tests, cloned from a template; one that a test did not write to serves the next test too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from tools.postgres import Cluster

# Whoever writes takes a number, also if the transaction is rolled back later.
_NEXT_XID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
_END_SESSIONS = "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
_PATIENCE = 10.0  # seconds
_PAUSE = 0.001
_numbers = itertools.count(1)


class Clones:
    """The clones of one template, of which each test has one alone."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = sql.Identifier(template)
        self._unwritten: list[str] = []
        self._session: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the session; the server goes with the databases."""
        if self._session is not None:
            self._session.close()

    @contextmanager
    def one(self) -> Iterator[str]:
        """Give the name of a database that is like the template."""
        name = self._unwritten.pop() if self._unwritten else self._clone()
        begun_at = self._next_xid()
        try:
            yield name
        finally:
            self._end_sessions(name)
            if self._next_xid() == begun_at:
                self._unwritten.append(name)
            else:
                self._connect().execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _clone(self) -> str:
        name = f"test_{next(_numbers)}"
        # A copy of the files is cheaper than one through the log; the price, a checkpoint, is small on this server.
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self._connect().execute(command.format(sql.Identifier(name), self._template))
        return name

    def _end_sessions(self, name: str) -> None:
        # Most are about to end. The server waits in steps of 100 ms for that, in pg_terminate_backend() as in DROP
        # DATABASE: longer than most tests take.
        deadline = time.monotonic() + _PATIENCE
        for pid, _ in self._connect().execute(_END_SESSIONS, [name]).fetchall():
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(_PAUSE)

    def _next_xid(self) -> str:
        ((number,),) = self._connect().execute(_NEXT_XID).fetchall()
        return str(number)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # One session for all: to open some for each test would take a tenth of the time of most. A test may restart the
        # server, which ends it.
        if self._session is not None:
            try:
                self._session.execute("")
                return self._session
            except psycopg.OperationalError:
                self._session.close()
        self._session = psycopg.connect(self._cluster.dsn(), autocommit=True)
        return self._session
