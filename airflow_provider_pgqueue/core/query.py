"""The folder `sql/`, and the queries that Python sends and no function of the schema answers, as files in it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def sql_folder() -> Traversable:
    """Return `sql/`: inside the installed package, or next to it in a checkout."""
    packaged = files("airflow_provider_pgqueue") / "sql"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "sql"


@cache
def query(name: str) -> bytes:
    """Return the text of `sql/queries/NAME.sql`, with the placeholders of psycopg."""
    return sql_folder().joinpath("queries", *f"{name}.sql".split("/")).read_bytes()
