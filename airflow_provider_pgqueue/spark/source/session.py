"""The one connection of a stream's process on the driver, which asks small questions for as long as the query runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core.errors import translate
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.migrations import check_version
from airflow_provider_pgqueue.spark.database import Database


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

    def ask(self, query: str, arguments: Mapping[str, Any] | None = None) -> list[Row]:
        """Return the rows of a statement that may run twice: it does if the connection broke under it.

        An error of the tree in `core.errors`.
        """
        conn = self._conn or self._open()
        began = time.monotonic()
        try:
            return _rows(conn, query, arguments)
        except psycopg.Error as error:
            if not conn.closed:
                raise translate(error) from error
        finally:
            self.seconds += time.monotonic() - began
        try:
            return _rows(self._open(), query, arguments)
        except psycopg.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        """Close the connection, if there is one; the next question opens another."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _open(self) -> psycopg.Connection[Any]:
        self._conn = self._database.connect(self._application_name)
        check_version(self._conn)
        return self._conn


def _rows(conn: psycopg.Connection[Any], query: str, arguments: Mapping[str, Any] | None) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), arguments).fetchall()
