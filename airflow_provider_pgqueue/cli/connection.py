"""Opens the connection of a command, and never shows the connection string."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import psycopg

from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.cli.text import print_text
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import check_version, connect, parameters, pause_after
from airflow_provider_pgqueue.core.errors import ConnectionFailed, PermissionDenied, refused, translate, why_again
from airflow_provider_pgqueue.core.message import QueueStatus
from airflow_provider_pgqueue.core.privilege import fix_of
from airflow_provider_pgqueue.core.verbs import Statement

Connection = psycopg.Connection[Any]
T = TypeVar("T")
_SERVER: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
_UNNAMED: Final = "PGQUEUE_DSN is not set: name the database there, with --dsn, or in libpq's own PGHOST, PGDATABASE, …"


@contextmanager
def connected(settings: Settings, *, check: bool = True) -> Iterator[Connection]:
    """Give an autocommit connection, after checking the version of the schema unless `check` is False.

    What the login may not do is PermissionDenied with the role that it needs.
    """
    conn = open_connection(settings)
    with conn:
        try:
            if check:
                check_version(conn)
            yield conn
        except (psycopg.Error, PermissionDenied) as error:
            _raise_with_role(conn, error)


def ask(settings: Settings, statement: Statement[T]) -> T:
    """Run a verb over a connection of its own, and return its result."""
    with connected(settings) as conn:
        return run(conn, statement)


def _raise_with_role(conn: Connection, error: psycopg.Error | PermissionDenied) -> NoReturn:
    has_fix = isinstance(error, PermissionDenied) and error.fix is not None
    told = error if has_fix else refused(conn, error, wants="observer")
    raise told from (error if told is not error else error.__cause__)


def status_for(conn: Connection, queue_name: str, verb: str) -> QueueStatus:
    """Return the numbers of a queue before a verb is called for it.

    A refusal names the role for the verb, because a role that only sees the numbers would be refused next.
    """
    try:
        (found,) = run(conn, verbs.status(queue_name))
    except PermissionDenied as error:
        fix = fix_of(conn, f"permission denied for function {verb}", queue_name=queue_name)
        raise PermissionDenied(error.problem, fix or error.fix) from error.__cause__
    return found


def open_connection(settings: Settings) -> Connection:
    """Return a new autocommit connection; ConnectionFailed says why there is none."""
    try:
        return connect(**({"application_name": "pgqueue cli"} | parameters(settings.dsn)))
    except ConnectionFailed as error:
        if settings.dsn or any(os.environ.get(name) for name in _SERVER):
            raise
        raise ConnectionFailed(error.problem.rstrip("."), _UNNAMED) from error


@dataclass
class Lasting:
    """A connection that is opened again when it breaks, for commands that poll until Ctrl-C.

    Set `failures` to 0 after each successful poll: the pauses grow with it.
    """

    settings: Settings
    conn: Connection
    failures: int = 0

    def reopen(self, error: Exception) -> None:
        """Open the connection again after growing pauses, with a line on stderr; raise an error that no retry fixes."""
        while True:
            if not isinstance(translate(error), ConnectionFailed):
                raise error
            self.conn.close()
            self.failures += 1
            pause = pause_after(self.failures)
            print_text(f"{why_again(error)}; next try in {pause:.1f} s", err=True)
            time.sleep(pause)
            try:
                self.conn = open_connection(self.settings)
                return
            except ConnectionFailed as again:
                error = again


@contextmanager
def connected_for_long(settings: Settings) -> Iterator[Lasting]:
    """Give a connection as `connected` does, to be opened again when it breaks; the first try must succeed."""
    with connected(settings) as conn:
        lasting = Lasting(settings, conn)
        try:
            yield lasting
        except (psycopg.Error, PermissionDenied) as error:
            _raise_with_role(lasting.conn, error)
        finally:
            lasting.conn.close()
