"""Opens the one connection of a command, and never shows what is in the connection string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.core.connection import connect
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.migrations import check_version

Connection = psycopg.Connection[Any]
_PORT = re.compile(r"[\d, ]*")


@contextmanager
def connected(settings: Settings, *, check: bool = True) -> Iterator[Connection]:
    """Give an autocommit connection to a schema that fits this package; with `check=False` to any database."""
    conn = open_connection(settings)
    with conn:
        if check:
            check_version(conn)
        yield conn


def open_connection(settings: Settings) -> Connection:
    """Return a new autocommit connection; ConnectionFailed says why there is none."""
    return connect(**({"application_name": "pgqueue cli"} | parameters(settings.dsn)))


def parameters(dsn: str) -> dict[str, Any]:
    """Return the parameters in a connection string; InvalidArgument, which does not quote it, if it is none."""
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.Error:
        found = None
    # Outside of the handler: the error of libpq quotes the string, and would be the cause.
    if found is None or _is_misread(found):
        raise InvalidArgument(
            "the connection string is not valid. Write postgresql://user@host:5432/database, or host=… dbname=…; "
            "in a URL write / @ : % of a password as %2F %40 %3A %25."
        )
    return found


def conninfo(settings: Settings) -> str:
    """Return the connection string after the same check."""
    return make_conninfo("", **parameters(settings.dsn))


def _is_misread(found: dict[str, Any]) -> bool:
    """Say whether a part of a password with / or @ ended up in what libpq quotes when it cannot connect."""
    names = f"{found.get('host', '')}{found.get('dbname', '')}"
    return "@" in names or not _PORT.fullmatch(str(found.get("port", "")))
