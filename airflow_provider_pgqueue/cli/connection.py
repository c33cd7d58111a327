"""Opens the one connection of a command, and never shows what is in the connection string."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.core.connection import check_version, connect, conninfo_of, parameters

Connection = psycopg.Connection[Any]


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
    return connect(**({"application_name": "pgqueue cli"} | parameters(settings.dsn)))


def conninfo(settings: Settings) -> str:
    """Return the connection string; InvalidArgument, without quoting it, if it is invalid."""
    return conninfo_of(parameters(settings.dsn))
