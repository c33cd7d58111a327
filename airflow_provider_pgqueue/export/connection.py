"""The database of the queue as a value that can be sent to other processes, and the sessions that they open."""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import adbc_driver_manager as adbc
import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn

from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import DEFAULTS, ENCODING, connect, conninfo_of, parameters
from airflow_provider_pgqueue.core.errors import ConnectionFailed, InvalidArgument, PermissionDenied, PgQueueError
from airflow_provider_pgqueue.core.privilege import lacking
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)

_NAME: Final = "pgqueue"
_SPARE: Final = 2  # connections that are left to the driver and to administrators
# The server names no SQLSTATE to a client that it refuses. The last one is PgBouncer's.
_NO_ROOM: Final = re.compile("too many (clients|connections)|connection slots are reserved|no more connections allowed")
_SERVICE: Final = frozenset({"service", "servicefile"})  # resolved
_NOT_SENT: Final = _SERVICE | {"client_encoding", "fallback_application_name"}  # libpq fills it in everywhere
_ALWAYS_SENT: Final = frozenset({"host", "hostaddr", "port", "dbname", "user"})
_TOO_MANY_PORTS: Final = "," * 1000
T = TypeVar("T")


@dataclass(init=False, repr=False, slots=True, unsafe_hash=True)
class Database:
    """A connection string whose `repr` shows neither host nor password; it can be pickled."""

    _conninfo: str

    def __init__(self, conninfo: str = "") -> None:
        """Resolve a connection string as this process would: `PGQUEUE_DSN`, libpq's variables, the service file.

        A password file is not resolved: it has to be where the executors are. InvalidArgument if it cannot be read.
        """
        self._conninfo = conninfo_of(_resolved(parameters(conninfo or os.environ.get("PGQUEUE_DSN", ""))))

    def __repr__(self) -> str:
        return "<Database>"

    def connect(
        self, application_name: str = _NAME, *, check_schema: bool = False, patient: bool = False
    ) -> psycopg.Connection[Any]:
        """Return a new autocommit session, as `core.connect` does, and wait up to a minute while all are taken.

        :param patient: wait for any reason. Tasks do: the driver has been connected, so the reason is temporary.
        """

        def open_one() -> psycopg.Connection[Any]:
            return connect(self._conninfo, check_schema=check_schema, application_name=application_name)

        return _patiently(open_one, patient=patient)

    def room(self, wanted: int) -> int:
        """Return how many of `wanted` tasks can have a connection now, at least one; a warning says if not all can.

        More tasks would find no connection; these share the work. Behind a pooler this is the room of the server.
        """
        with self.connect() as conn:
            return room(conn, wanted)

    def run(self, statement: Statement[T], application_name: str = _NAME) -> T:
        """Run a verb in a session of its own and return its result; an error if the schema has another version."""
        with self.connect(application_name, check_schema=True) as conn:
            return run(conn, statement)

    @contextmanager
    def arrow(self, application_name: str = _NAME) -> Iterator[Any]:
        """Open an ADBC session in autocommit mode, patiently; ConnectionFailed if none can be opened for a minute."""
        import adbc_driver_postgresql.dbapi as adbc

        # Arrow's strings are UTF-8, also if the encoding of the database is another.
        given = DEFAULTS | parameters(self._conninfo) | {"application_name": application_name} | ENCODING
        given.pop("prepare_threshold", None)

        def open_one() -> Any:
            try:
                return adbc.connect(make_conninfo("", **given), autocommit=True)
            except adbc.Error as error:
                raise ConnectionFailed(" ".join(str(error).split())) from error

        with _patiently(open_one, patient=True) as conn:
            yield conn


def room(conn: psycopg.Connection[Any], wanted: int) -> int:
    """Return what `Database.room` does, by a connection that is open."""
    ((free,),) = conn.execute(query("room"), binary=True).fetchall()
    found = max(1, min(wanted, int(free) - _SPARE))
    if found < wanted:
        connections, tasks = quantity(max(0, free), "connection"), quantity(found, "task")
        log.warning("the server has %s free: the work of %s tasks is queued in %s", connections, wanted, tasks)
    return found


def has_no_room(error: ConnectionFailed) -> bool:
    """Return whether the server, or a pooler, refused a connection because all are taken."""
    return bool(_NO_ROOM.search(str(error)))


def _patiently(open_one: Callable[[], T], *, patient: bool) -> T:
    patience, pause = TUNING.connection_patience, 0.05
    give_up = time.monotonic() + patience
    while True:
        try:
            return open_one()
        except ConnectionFailed as error:
            if not (patient or has_no_room(error)) or time.monotonic() > give_up:
                raise
            if pause == 1.6:
                log.warning("no connection yet, trying for up to %.0f s: %s", patience, error.problem)
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, 3.2)


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
        self._conn = self._database.connect(self._application_name, check_schema=True)
        return self._conn


def rows(conn: Any, statement: str, schema: pa.Schema, *, given: str = "") -> Iterator[pa.RecordBatch]:
    """Stream the record batches of a statement, one in memory at a time; ConnectionFailed rather than a short result.

    :param given: what of the user's is in the statement; the user then is told what is wrong with it.
    """
    try:
        with reading(conn) as cursor:
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                yield batch.cast(schema)
    except (adbc.Error, pa.ArrowException, OSError) as error:
        # The error is not kept as the cause: its text has the whole statement, with the values in its conditions.
        raise translated(error, given) from None


@contextmanager
def reading(conn: Any, isolation: str = "READ COMMITTED") -> Iterator[Any]:
    """Open a read-only transaction of an ADBC session, and a cursor in it. After an error, close the session.

    The driver sends each statement in two steps, between which a pooler in transaction mode may give the session to
    another client. BEGIN and COMMIT are safe if the driver sends them itself.
    """
    conn.adbc_connection.set_autocommit(False)
    with conn.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}, READ ONLY")
        yield cursor
    conn.adbc_connection.set_autocommit(True)


def translated(error: Exception, given: str = "") -> PgQueueError:
    """Return the error of the tree for one of the Arrow driver, or of Arrow in the middle of a result."""
    said = re.search(r"(ERROR|FATAL): +(.*)", str(error))
    # Values of a row stand in quotes, whose form depends on the language of the server.
    text = re.sub('["«»„“].*', "…", said[2]) if said else "the connection broke"
    if getattr(error, "sqlstate", None) == "42501":
        group = lacking(text, "reader")
        return PermissionDenied(text, None if group is None else f"Ask an admin for messages_{group}.")
    # In the middle of a result there is no SQLSTATE, but no other part of a statement fails for a row.
    if given and said and said[1] == "ERROR":
        return InvalidArgument(f"{given} fails: {text}. Give one that only reads, and fails for no row.")
    return ConnectionFailed(f"a range could not be read: {text}. Nothing was changed; read again.")


def _resolved(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that libpq would connect with, without those that are its own defaults.

    libpq says what it assembled from the variables and the service file even if one of the values is wrong, and then
    connects to nothing. So it is asked twice: with a wrong port, and for the port with a wrong `sslmode`. A service
    that it does not know is left for it to report when it connects.
    """
    of_psycopg = {name: given.pop(name) for name in ("prepare_threshold",) if name in given}
    found = _refused(given, port=_TOO_MANY_PORTS)
    if not found:
        return given | of_psycopg
    found["port"] = _refused(given, sslmode="none such")["port"]
    by_itself = {
        (option.keyword.decode(), option.val.decode())
        for option in Conninfo.get_defaults()
        if option.val and option.val == option.compiled and option.keyword.decode() not in _ALWAYS_SENT
    }
    told = {name: value for name, value in found.items() if name not in _NOT_SENT and (name, value) not in by_itself}
    return {name: value for name, value in given.items() if name in _NOT_SENT - _SERVICE} | told | of_psycopg


def _refused(given: dict[str, Any], **wrong: str) -> dict[str, str]:
    """Return what libpq assembled before it noticed that a value is wrong; nothing if it knows no such service."""
    conn = PGconn.connect_start(make_conninfo("", **(given | wrong)).encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in conn.info if option.val}
    finally:
        conn.finish()
