"""Opens the one connection of a command, and never shows what is in the connection string."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.core.connection import check_version, connect, conninfo_of, parameters
from airflow_provider_pgqueue.core.errors import ConnectionFailed

Connection = psycopg.Connection[Any]
_SERVER: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
_UNNAMED: Final = "PGQUEUE_DSN is not set: name the database there, with --dsn, or in libpq's own PGHOST, PGDATABASE, …"


@contextmanager
def connected(settings: Settings, *, check: bool = True) -> Iterator[Connection]:
    """Give an autocommit connection, after checking the version of the schema unless `check` is False."""
    conn = open_connection(settings)
    with conn:
        if check:
            check_version(conn)
        yield conn


def open_connection(settings: Settings) -> Connection:
    """Return a new autocommit connection; ConnectionFailed says why there is none."""
    try:
        return connect(**({"application_name": "pgqueue cli"} | parameters(settings.dsn)))
    except ConnectionFailed as error:
        if settings.dsn or any(os.environ.get(name) for name in _SERVER):
            raise
        raise ConnectionFailed(error.problem.rstrip("."), _UNNAMED) from error


def conninfo(settings: Settings) -> str:
    """Return the connection string; InvalidArgument, without quoting it, if it is invalid."""
    return conninfo_of(parameters(settings.dsn))
