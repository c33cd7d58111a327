"""Sections of a page that stand alone: one that the login may not read says so, and the others are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core.client import fetch
from airflow_provider_pgqueue.core.errors import PermissionDenied, refused
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.query import query

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands in place of a section that the login of the connection may not read."""

    problem: str
    fix: str | None


def part(conn: psycopg.Connection[Any], find: Callable[[], T]) -> T | Refused:
    """Return what is found on a connection, or why the login may not find it; the transaction continues."""
    try:
        with conn.transaction():
            return find()
    except PermissionDenied as error:
        # Asked again, because a failed transaction does not tell which role the login has and does not inherit.
        told = refused(conn, error, wants="observer")
        return Refused(error.problem, told.fix if isinstance(told, PermissionDenied) else error.fix)


def rows_of(conn: psycopg.Connection[Any], name: str, **arguments: Any) -> list[Row]:
    """Return the rows of a query of sql/queries/."""
    return fetch(conn, dict_row, query(name), arguments, fix=partial(refused, wants="observer"))
