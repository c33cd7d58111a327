"""Where the queue is, and the sessions that the driver and the executors open to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn

from airflow_provider_pgqueue.core.connection import DEFAULTS, connect, conninfo_of, parameters
from airflow_provider_pgqueue.core.errors import ConnectionFailed

_SERVICE: Final = frozenset({"service", "servicefile"})  # resolved
_NOT_SENT: Final = _SERVICE | {"client_encoding", "fallback_application_name"}  # libpq fills it in everywhere
_ALWAYS_SENT: Final = frozenset({"host", "hostaddr", "port", "dbname", "user"})
_TOO_MANY_PORTS: Final = "," * 1000


class Database:
    """A connection string that hides itself: its `repr` has neither host nor password. Can be pickled."""

    __slots__ = ("_conninfo",)

    def __init__(self, conninfo: str = "") -> None:
        """Resolve a connection string as this process would: `PGQUEUE_DSN`, libpq's variables, the service file.

        A password file is not resolved: it has to be where the executors are. InvalidArgument if it cannot be read.
        """
        self._conninfo = conninfo_of(_resolved(parameters(conninfo or os.environ.get("PGQUEUE_DSN", ""))))

    def __repr__(self) -> str:
        return "<Database>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Database) and self._conninfo == other._conninfo

    def __hash__(self) -> int:
        return hash(self._conninfo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._conninfo,)

    def connect(self, application_name: str = "pgqueue spark") -> psycopg.Connection[Any]:
        """Return a new autocommit session; ConnectionFailed if there is none to be had."""
        return connect(self._conninfo, application_name=application_name)

    @contextmanager
    def arrow(self, application_name: str = "pgqueue spark") -> Iterator[Any]:
        """Open an ADBC session in autocommit mode; ConnectionFailed if there is none to be had."""
        import adbc_driver_postgresql.dbapi as adbc

        # Arrow's strings are UTF-8, whatever the encoding of the database is.
        own = {"application_name": application_name, "client_encoding": "UTF8"}
        given = DEFAULTS | parameters(self._conninfo) | own
        given.pop("prepare_threshold", None)
        conninfo = make_conninfo("", **given)
        try:
            conn = adbc.connect(conninfo, autocommit=True)
        except adbc.Error as error:
            raise ConnectionFailed(str(error)) from error
        with conn:
            yield conn


def _resolved(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that libpq would connect with, but for those that are its own defaults anyway.

    libpq puts them together itself, and refuses before it connects because of one that is wrong. A service that it does
    not know is left to it: it says so when it connects.
    """
    of_psycopg = {name: given.pop(name) for name in ("prepare_threshold",) if name in given}
    found = _refused(given, port=_TOO_MANY_PORTS)
    if not found:
        return given | of_psycopg
    found["port"] = _refused(given, sslmode="none such")["port"]
    by_itself = {
        (option.keyword.decode(), option.val.decode())
        for option in Conninfo.get_defaults()
        if option.val and option.val == option.compiled and option.keyword.decode() not in _ALWAYS_SENT
    }
    told = {name: value for name, value in found.items() if name not in _NOT_SENT and (name, value) not in by_itself}
    return {name: value for name, value in given.items() if name in _NOT_SENT - _SERVICE} | told | of_psycopg


def _refused(given: dict[str, Any], **wrong: str) -> dict[str, str]:
    conn = PGconn.connect_start(make_conninfo("", **(given | wrong)).encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in conn.info if option.val}
    finally:
        conn.finish()


def _unpickled(conninfo: str) -> Database:
    database = Database.__new__(Database)
    database._conninfo = conninfo
    return database
