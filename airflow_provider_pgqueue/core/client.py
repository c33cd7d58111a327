"""Runs verbs and queries over a connection: one driver for a sync connection, one for an async one."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import Params
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import RowFactory, dict_row, tuple_row

from airflow_provider_pgqueue.core.deadline import begin_wait, end_wait
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, refused, wrong_encoding
from airflow_provider_pgqueue.core.privilege import fix_of
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.statement import Statement
from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)

T = TypeVar("T")
_UNREADABLE: Final = ("22P02", "22007", "22008", "22003", "22015")
_PATIENCE: Final = 5.0  # seconds for the server to take a cancel, as the driver grants after Ctrl-C


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    """Run a verb and return its result, inside the caller's transaction if one is open.

    Raises a PgQueueError. LeaseLost is raised after the call took effect for the messages that were not lost.
    """
    fix = partial(_translated, statement=statement)
    text = statement.text(alone=is_alone(conn))
    return statement.decode(fetch(conn, dict_row, text, statement.given, fix=fix))


def fetch(
    conn: psycopg.Connection[Any],
    rows: RowFactory[T],
    text: str | bytes,
    arguments: Params,
    *,
    cursor: psycopg.Cursor[T] | None = None,
    fix: Callable[[psycopg.Connection[Any], psycopg.Error], Exception] = refused,
    late: list[PGresult] | None = None,
) -> list[T]:
    """Return the rows of a statement, in binary, inside the caller's transaction if one is open.

    An answer that is lost on its way is not waited for; see `begin_wait`. Raises what `fix` makes of an error of the
    driver. After another exception the statement is canceled, and `late`
    gets its results, in case it had finished already.
    """
    wait = begin_wait(conn)
    try:
        cursor = cursor or conn.cursor(row_factory=rows)
        # A single statement needs a transaction behind a pooler whose role is not READ COMMITTED.
        if conn.isolation_level is not None and is_alone(conn):
            with conn.transaction():
                return cursor.execute(text, arguments, binary=True).fetchall()
        return cursor.execute(text, arguments, binary=True).fetchall()
    except psycopg.Error as error:
        raise fix(conn, error) from error
    except UnicodeEncodeError as error:
        raise (wrong_encoding(conn) or error) from None
    except BaseException:
        results = end_statement(conn)
        if late is not None:
            late += results
        raise
    finally:
        end_wait(wait)


def end_statement(conn: psycopg.Connection[Any]) -> list[PGresult]:
    """Cancel the statement that an exception left running; return its results, in case it had finished already.

    The driver does so after KeyboardInterrupt and SystemExit, but not after what another signal raises, such as
    AirflowTaskTimeout: no further call over the connection would succeed, and the results of this one would be lost.
    """
    if not _is_running(conn):
        return []
    results: list[PGresult] = []
    if not is_free(conn):
        cut(conn)
        return []
    # A thread that waits for the lock may find that the other statement has ended: then there is nothing to cancel.
    with conn.lock:
        try:
            if _is_running(conn):
                conn.cancel_safe(timeout=_PATIENCE)
                results = conn.wait(generators.execute(conn.pgconn))
        except psycopg.Error as error:
            log.warning("could not cancel a statement (%s): closing the connection", type(error).__name__)
        finally:
            if _is_running(conn):
                conn.close()
    if conn.isolation_level is not None and conn.autocommit and not is_alone(conn):
        # That of `fetch`; inside one of the caller the driver refuses.
        with suppress(psycopg.Error):
            conn.rollback()
            return []
    return results


def is_free(conn: psycopg.Connection[Any]) -> bool:
    """Return whether no other call has the connection, or ends within a few seconds."""
    if free := conn.lock.acquire(timeout=TUNING.longest_call):
        conn.lock.release()
    return free


def cut(conn: psycopg.Connection[Any]) -> None:
    """Close a connection that another call has: who uses it from now on gets an error, and does not wait."""
    # A thread within the driver has to leave it first, or it would read the memory of a connection that is gone.
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(conn.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)
    lock = conn.lock
    if lock.acquire(timeout=1):
        conn.close()
        lock.release()
    else:
        conn.close()
        conn.lock = threading.Lock()  # a stream that nobody reads on keeps the other for good


def _is_running(conn: psycopg.Connection[Any]) -> bool:
    pgconn = conn.pgconn
    return pgconn.transaction_status == TransactionStatus.ACTIVE and pgconn.pipeline_status == PipelineStatus.OFF


async def run_async(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    """Run a verb on an async connection and return its result, as `run` does."""
    try:
        alone = conn.isolation_level is not None and is_alone(conn)
        own = conn.transaction() if alone else nullcontext()
        async with own, conn.cursor(row_factory=dict_row, binary=True) as cursor:
            await cursor.execute(statement.text(alone=is_alone(conn)), statement.given)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise _translated(conn, error, statement) from error
    except UnicodeEncodeError as error:
        raise (wrong_encoding(conn) or error) from None
    return statement.decode(rows)


def _translated(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: psycopg.Error, statement: Statement[Any]
) -> Exception:
    """Translate an error of the driver; name the argument whose number is out of range."""
    if isinstance(error, psycopg.errors.UndefinedFunction):
        for name, value in statement.given.items():
            if type(value) is int and not -(2**31) <= value < 2**31:
                return InvalidArgument(f"{name} is {value}", "Give a number in the range of its type.")
    found = refused(conn, error, verb=statement.function, queue_name=statement.given.get("queue_name"))
    if isinstance(found, InvalidArgument) and error.sqlstate in _UNREADABLE:
        # The server quotes the value, and does not say of which argument.
        quoted = [
            one for one, value in statement.given.items() if isinstance(value, str) and f'"{value}"' in str(found)
        ]
        if quoted:
            found.at(quoted[0])
    return found


def require(conn: psycopg.Connection[Any], functions: Sequence[str], queue_name: str | None = None) -> None:
    """Raise PermissionDenied, with the statement that grants it, for the first of the functions that is refused.

    A login that leases messages but may not archive them would hold them until the lease ends.
    """
    for (name,) in fetch(conn, tuple_row, query("refused_function"), {"functions": list(functions)}):
        problem = f"permission denied for function {name}"
        raise PermissionDenied(problem, fix_of(conn, problem, verb=name, queue_name=queue_name))


def is_alone(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the next statement is a transaction of its own: outside of the caller's, and of a pipeline."""
    pgconn = conn.pgconn
    alone = conn.autocommit and pgconn.transaction_status == TransactionStatus.IDLE
    return alone and pgconn.pipeline_status == PipelineStatus.OFF
