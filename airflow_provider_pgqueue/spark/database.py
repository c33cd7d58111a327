"""Where the queue is, and the sessions that the driver and the executors open to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn
from psycopg.types.json import set_json_loads

from airflow_provider_pgqueue.core.client import Statement, run
from airflow_provider_pgqueue.core.connection import DEFAULTS, check_version, connect, conninfo_of, parameters
from airflow_provider_pgqueue.core.errors import ConnectionFailed

T = TypeVar("T")
_SERVICE: Final = frozenset({"service", "servicefile"})  # resolved
_NOT_SENT: Final = _SERVICE | {"client_encoding", "fallback_application_name"}  # libpq fills it in everywhere
_ALWAYS_SENT: Final = frozenset({"host", "hostaddr", "port", "dbname", "user"})
_TOO_MANY_PORTS: Final = "," * 1000


class Database:
    """A connection string whose `repr` shows neither host nor password; it can be pickled."""

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
        """Return a new autocommit session; ConnectionFailed if none can be opened."""
        return connect(self._conninfo, application_name=application_name)

    def run(self, statement: Statement[T], application_name: str = "pgqueue spark") -> T:
        """Run a verb in a session of its own and return its result; an error if the schema has another version."""
        with self.connect(application_name) as conn:
            check_version(conn)
            return run(conn, statement)

    def now(self) -> datetime:
        """Return the time of the database: its clock is the only one."""
        with self.connect() as conn:
            ((moment,),) = conn.execute("SELECT clock_timestamp()").fetchall()
        return cast("datetime", moment)

    @contextmanager
    def arrow(self, application_name: str = "pgqueue spark") -> Iterator[Any]:
        """Open an ADBC session in autocommit mode; ConnectionFailed if none can be opened."""
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


def leave_json(conn: psycopg.Connection[Any]) -> None:
    """Let JSON arrive as its text: a body that goes through is not read and written anew, and loses no digit."""
    set_json_loads(lambda data: data if isinstance(data, str) else data.decode(), conn)


def _resolved(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that libpq would connect with, without those that are its own defaults.

    libpq assembles them itself: it is given a wrong one, so that it fails before it connects. A service that it does
    not know is left for it to report when it connects.
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
