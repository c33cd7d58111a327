"""The rows of a statement as Arrow, out of a short read-only transaction of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager.dbapi as adbc
import pyarrow as pa

from airflow_provider_pgqueue.core.errors import ConnectionFailed, InvalidArgument, PermissionDenied, PgQueueError


def rows(conn: Any, statement: str, schema: pa.Schema, *, has_where: bool = False) -> Iterator[pa.RecordBatch]:
    """Stream the record batches of a statement, one in memory at a time; ConnectionFailed rather than a short result.

    :param has_where: whether the statement has a condition of the user, who then is told what is wrong with it.
    """
    try:
        with reading(conn) as cursor:
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                yield batch.cast(schema)
    except (adbc.Error, pa.ArrowException, OSError) as error:
        # Not as the cause: its text has the whole statement, with the values in its conditions.
        raise _translated(error, has_where) from None


@contextmanager
def reading(conn: Any, isolation: str = "READ COMMITTED") -> Iterator[Any]:
    """Open a read-only transaction of an ADBC session, and a cursor in it. After an error, close the session.

    The driver sends each statement in two steps, between which a pooler in transaction mode may give the session to
    somebody else; but not BEGIN and COMMIT, if it is told to make them itself.
    """
    conn.adbc_connection.set_autocommit(False)
    with conn.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}, READ ONLY")
        yield cursor
    conn.adbc_connection.set_autocommit(True)


def _translated(error: Exception, has_where: bool) -> PgQueueError:
    """Return the error of the tree for one of the Arrow driver, or of Arrow in the middle of a result."""
    said = re.search(r"(ERROR|FATAL): +(.*)", str(error))
    text = said[2] if said else "the connection broke"
    if getattr(error, "sqlstate", None) == "42501":
        return PermissionDenied(f"{text}. Ask an admin to grant messages_reader to the role.")
    # In the middle of a result there is no SQLSTATE, but no other part of a statement fails for a row.
    if has_where and said and said[1] == "ERROR":
        return InvalidArgument(f"option where fails: {text}. Give a condition that holds or not for each row.")
    return ConnectionFailed(f"a range could not be read: {text}. Nothing was changed; read again.")
