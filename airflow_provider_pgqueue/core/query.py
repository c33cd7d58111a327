"""The queries that Python sends and no function of the schema answers, as files of sql/queries."""

from __future__ import annotations

from functools import cache

from airflow_provider_pgqueue.core.migrations import sql_folder


@cache
def query(name: str) -> bytes:
    """Return the text of `sql/queries/NAME.sql`, with the placeholders of psycopg."""
    return (sql_folder() / "queries" / f"{name}.sql").read_bytes()
