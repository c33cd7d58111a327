"""What a login must be allowed before it begins what it could not finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core.client import fetch
from airflow_provider_pgqueue.core.errors import PermissionDenied
from airflow_provider_pgqueue.core.privilege import fix_of
from airflow_provider_pgqueue.core.query import query


def require(conn: psycopg.Connection[Any], functions: Sequence[str], queue_name: str | None = None) -> None:
    """Raise PermissionDenied, with the statement that grants it, for the first of the functions that is refused.

    Whoever leases messages and may not archive them would hold them until the lease ends.
    """
    refused = fetch(conn, tuple_row, query("refused_function"), {"functions": list(functions)})
    for (name,) in refused:
        problem = f"permission denied for function {name}"
        raise PermissionDenied(problem, fix_of(conn, problem, verb=name, queue_name=queue_name))
