"""Databases of their own for tests, on whatever server there is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.migrations import migrate
from airflow_provider_pgqueue.testing import SetupError
from airflow_provider_pgqueue.testing.binaries import OLDEST

_CREATE = "CREATE DATABASE {} TEMPLATE {}"
_DROP = "DROP DATABASE IF EXISTS {}"
_DROP_WITH_SESSIONS = "DROP DATABASE IF EXISTS {} WITH (FORCE)"
_numbers = itertools.count(1)


@contextmanager
def new_database(server: str, *, template: str = "template1") -> Iterator[str]:
    """Give the URI of a new database `pgqueue_test_<pid>_<number>`, dropped with all its sessions at the end.

    :param server: URI or connection string of a server on which databases may be created.
    :param template: the name of the database to clone.
    """
    with _connected(server) as conn:
        name = _create(conn, template)
    try:
        yield uri(server, dbname=name)
    finally:
        with _connected(server) as conn:
            _drop(conn, name)


@contextmanager
def new_template(server: str) -> Iterator[str]:
    """Give the URI of a new database with the schema installed, to be cloned."""
    with new_database(server) as template:
        with _connected(template) as conn:
            if conn.info.server_version < OLDEST * 10_000:
                raise SetupError(
                    f"the server has PostgreSQL {conn.info.server_version // 10_000}, the queue needs {OLDEST} or newer"
                )
            try:
                migrate(conn)
            except PgQueueError as error:
                raise SetupError(f"the schema cannot be installed: {error}") from error
        yield template


def uri(conninfo: str, **changes: Any) -> str:
    """Return a connection string as a URI, which psycopg, SQLAlchemy and other programs read alike."""
    known = {key: str(value) for key, value in conninfo_to_dict(conninfo, **changes).items() if value is not None}
    user, password, dbname = (quote(known.pop(key, ""), safe="") for key in ("user", "password", "dbname"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host = known.get("host", "")
    if host and not host.startswith(("/", "@")) and "," not in host:
        del known["host"]
        login += f"[{host}]" if ":" in host else host
        login += f":{known.pop('port')}" if "port" in known else ""
    return f"postgresql://{login}/{dbname}" + (f"?{urlencode(known, quote_via=quote)}" if known else "")


@contextmanager
def _connected(server: str) -> Iterator[psycopg.Connection[Any]]:
    """Give an autocommit session; the error says what failed, and never the password."""
    try:
        conn = psycopg.connect(make_conninfo(server, **_defaults(server)), autocommit=True)
    except psycopg.Error as error:
        raise SetupError(f"cannot connect to the PostgreSQL server: {str(error).strip()}") from error
    with conn:
        yield conn


def _defaults(server: str) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(server)
    except psycopg.ProgrammingError as error:
        # The driver quotes what it cannot read, and that may be a password.
        raise SetupError("the connection string of the PostgreSQL server cannot be read") from error
    return {"dbname": "postgres", "connect_timeout": 10} | given


def _create(conn: psycopg.Connection[Any], template: str) -> str:
    while True:
        name = f"pgqueue_test_{os.getpid()}_{next(_numbers)}"
        try:
            conn.execute(sql.SQL(_CREATE).format(sql.Identifier(name), sql.Identifier(template)))
        except psycopg.errors.DuplicateDatabase:
            continue  # left behind by a process that was killed and had the same id
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"the role {conn.info.user} may not create databases: ALTER ROLE {conn.info.user} CREATEDB"
            ) from error
        except psycopg.errors.ObjectInUse as error:
            raise SetupError(
                f"{error.diag.message_primary}. Close each session that a fixture pgqueue_template opened."
            ) from error
        return name


def _drop(conn: psycopg.Connection[Any], name: str) -> None:
    database = sql.Identifier(name)
    try:
        conn.execute(sql.SQL(_DROP_WITH_SESSIONS).format(database))
    except psycopg.errors.InsufficientPrivilege:
        # Autovacuum is there, or a superuser, whom only a superuser may terminate. Without FORCE, PostgreSQL sends the
        # one away, and waits five seconds for the other.
        conn.execute(sql.SQL(_DROP).format(database))
