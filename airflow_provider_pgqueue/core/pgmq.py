"""The names of PGMQ for the queues, which its clients call: docs/how-to/pgmq-clients.md."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_provider_pgqueue.core.errors import translate
from airflow_provider_pgqueue.core.query import sql_folder

Connection = psycopg.Connection[Any]


def names_of_pgmq() -> str:
    """Return `sql/pgmq.sql`, which is a transaction of its own."""
    return (sql_folder() / "pgmq.sql").read_text()


def install_names(conn: Connection) -> None:
    """Make schema `pgmq`, or bring it up to date; ForeignSchema next to the extension. Needs autocommit."""
    try:
        conn.execute(names_of_pgmq().encode())
    except psycopg.Error as error:
        conn.rollback()
        raise translate(error) from error
