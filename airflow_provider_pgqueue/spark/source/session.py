"""The one connection of a stream's process on the driver, which asks small questions for as long as the query runs."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg

from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.database import Database

T = TypeVar("T")


class Session:
    """Opens its connection at the first question, and a new one when it broke. Pickled, it comes out unopened.

    `seconds` is how long the questions took so far.
    """

    def __init__(self, database: Database, application_name: str) -> None:
        self._database = database
        self._application_name = application_name
        self._conn: psycopg.Connection[Any] | None = None
        self.seconds = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._database, self._application_name)

    def ask(self, statement: Statement[T]) -> T:
        """Return the result of a statement. It runs twice if the connection breaks under it."""
        conn = self._conn or self._open()
        began = time.monotonic()
        try:
            return run(conn, statement)
        except (PgQueueError, psycopg.Error):
            if not conn.closed:
                raise
        finally:
            self.seconds += time.monotonic() - began
        return run(self._open(), statement)

    def close(self) -> None:
        """Close the connection, if there is one; the next question opens another."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _open(self) -> psycopg.Connection[Any]:
        self._conn = self._database.connect(self._application_name)
        check_version(self._conn)
        return self._conn
