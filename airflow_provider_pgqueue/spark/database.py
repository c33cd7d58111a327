"""Where the queue is, and the sessions that the driver and the executors open to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from airflow_provider_pgqueue.core.connection import DEFAULTS, connect
from airflow_provider_pgqueue.core.errors import ConnectionFailed

# What libpq fills in by itself everywhere; to send it along would only hide the defaults of the executors.
_NOT_SENT: Final = frozenset({"client_encoding", "fallback_application_name", "options"})


class Database:
    """A connection string that hides itself: its `repr` has neither host nor password. Can be pickled."""

    __slots__ = ("_conninfo",)

    def __init__(self, conninfo: str = "") -> None:
        """Resolve a connection string as this process would: `PGQUEUE_DSN`, libpq's variables, the service file.

        A password file is not resolved: it has to be where the executors are.
        """
        known = {
            option.keyword.decode(): option.val.decode()
            for option in Conninfo.get_defaults()
            if option.val and option.keyword.decode() not in _NOT_SENT
        }
        given = conninfo_to_dict(conninfo or os.environ.get("PGQUEUE_DSN", ""))
        self._conninfo = make_conninfo("", **(known | given))

    def __repr__(self) -> str:
        return "<Database>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._conninfo,)

    def connect(self, application_name: str = "pgqueue spark") -> psycopg.Connection[Any]:
        """Return a new autocommit session; ConnectionFailed if there is none to be had."""
        return connect(self._conninfo, application_name=application_name)

    @contextmanager
    def arrow(self, application_name: str = "pgqueue spark") -> Iterator[Any]:
        """Open an ADBC session in autocommit mode; ConnectionFailed if there is none to be had."""
        import adbc_driver_postgresql.dbapi as adbc

        named = {"application_name": application_name}
        conninfo = make_conninfo("", **(DEFAULTS | conninfo_to_dict(self._conninfo) | named))
        try:
            conn = adbc.connect(conninfo, autocommit=True)
        except adbc.Error as error:
            raise ConnectionFailed(str(error)) from error
        with conn:
            yield conn


def _unpickled(conninfo: str) -> Database:
    database = Database.__new__(Database)
    database._conninfo = conninfo
    return database
