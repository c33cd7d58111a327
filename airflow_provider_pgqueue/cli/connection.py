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
from airflow_provider_pgqueue.core.errors import ConnectionFailed, InvalidArgument
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
    """Return a new autocommit connection; ConnectionFailed says why there is none, without the password."""
    arguments = parameters(settings.dsn)
    try:
        return connect(**({"application_name": "pgqueue cli"} | arguments))
    except ConnectionFailed as error:
        text = str(error)
        if password := arguments.get("password"):
            text = text.replace(str(password), "***")
        raise ConnectionFailed(text) from error


def parameters(dsn: str) -> dict[str, Any]:
    """Return the parameters in a connection string; InvalidArgument, which does not quote it, if it is none."""
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.Error:
        found = {"host": "@"}
    # A password with / or @ in a URL ends up in these, and libpq would quote them.
    if any("@" in str(found.get(part, "")) for part in ("host", "dbname")) or not _PORT.fullmatch(
        str(found.get("port", ""))
    ):
        # Without a cause: libpq quotes the string.
        raise InvalidArgument(
            "the connection string is not valid. Write postgresql://user@host:5432/database, or host=… dbname=…; "
            "in a URL write / @ : % of a password as %2F %40 %3A %25."
        ) from None
    return found


def conninfo(settings: Settings) -> str:
    """Return the connection string after the same check."""
    return make_conninfo("", **parameters(settings.dsn))
