"""Opens connections that notice a dead network and see what others commit, and checks the version of their schema."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.json import JsonbBinaryLoader, set_json_loads

from airflow_provider_pgqueue.core.deadline import know, within
from airflow_provider_pgqueue.core.errors import (
    INSTALL,
    UPGRADE,
    ConnectionFailed,
    InvalidArgument,
    PermissionDenied,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    translate,
)
from airflow_provider_pgqueue.core.json_text import read_json
from airflow_provider_pgqueue.core.migrations import code_version
from airflow_provider_pgqueue.core.query import query

JSONB: Final = 3802  # its OID
_UNDEFINED: Final = ("3F000", "42883", "42P01")  # schema, function, table
_PORT: Final = re.compile(r"[\d, ]*")
# A parameter of psycopg and not of libpq, whose functions refuse it in a connection string.
_THRESHOLD: Final = re.compile(r"(?:^|(?<=[\s?&]))prepare_threshold\s*=\s*('[\w.+-]*'|[\w.+-]*)(?:&|(?=\s|$))")
# The errors that libpq finds in the parameters alone.
_NEVER: Final = re.compile(
    r"invalid (\S+ value:|integer value|port number|connection option)|definition of service|service file|"
    r"bad value for|invalid when SSL support|could not match \d+"
)
_PATIENCE: Final = 10.0  # seconds that a server has for the first answer on a new connection
# A cut link is noticed after about idle + count * interval = 25 seconds. While sent data is not acknowledged, no probe
# is sent, and tcp_user_timeout applies. The defaults of the system are two hours and a quarter of an hour.
DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "application_name": "pgqueue",
}
# Set against the connection string, PGCLIENTENCODING and the role, because only UTF8 can hold every body.
ENCODING: Final[dict[str, Any]] = {"client_encoding": "UTF8"}


def connect(conninfo: str = "", *, check_schema: bool = False, **arguments: Any) -> psycopg.Connection[Any]:
    """Return a new autocommit connection; ConnectionFailed if it cannot be opened, InvalidArgument if it never can.

    Its transactions are READ COMMITTED and its encoding UTF8, and texts, times and durations arrive as they were sent,
    whatever the connection string, role, database or server sets; behind a pooler that holds for the verbs, and for
    what is inside `conn.transaction()`. JSON that Python cannot read arrives as `Unreadable`. A dead network is noticed
    after about 25 seconds, and a server that takes the connection and does not answer after ten. `arguments` are
    parameters of libpq and psycopg. With `check_schema` it raises as `check_version` does.

    Statements are prepared, unless a pooler such as PgBouncer stands in between, where the next transaction may have
    another session: then `prepare_threshold` is None. Give it, also in the connection string, to say otherwise.
    """
    given = _given(conninfo, arguments)
    try:
        # Autocommit, so that a verb has taken effect when it returns, and no waiting session holds a transaction open.
        conn = psycopg.connect(autocommit=True, **given)
        try:
            cursor = conn.cursor(row_factory=tuple_row)
            with within(conn, _PATIENCE):
                row = cursor.execute(query("pin_settings"), [conn.info.backend_pid], prepare=False).fetchone()
        except BaseException:
            conn.close()
            raise
    except psycopg.Error as error:
        raise _refusal(error) from error
    conn.isolation_level = _disable_prepare(conn, row, given)
    know(conn, direct=row is not None and row[0] == conn.info.backend_pid)
    read_any_json(conn)
    if check_schema:
        try:
            check_version(conn)
        except BaseException:
            conn.close()
            raise
    return conn


async def connect_async(conninfo: str = "", **arguments: Any) -> psycopg.AsyncConnection[Any]:
    """Return a new async autocommit connection, as `connect` does.

    Each address of each host has `connect_timeout` seconds, so that one that is silent leaves time for the next.
    """
    given = _given(conninfo, arguments)
    try:
        conn = await psycopg.AsyncConnection.connect(autocommit=True, **given)
        try:
            cursor = conn.cursor(row_factory=tuple_row)
            async with asyncio.timeout(_PATIENCE):
                asked = await cursor.execute(query("pin_settings"), [conn.info.backend_pid], prepare=False)
                row = await asked.fetchone()
        except BaseException:
            await conn.close()
            raise
    except TimeoutError as error:
        raise ConnectionFailed("the server took the connection, and does not answer", "Try again.") from error
    except psycopg.Error as error:
        raise _refusal(error) from error
    await conn.set_isolation_level(_disable_prepare(conn, row, given))
    read_any_json(conn)
    return conn


def _refusal(error: psycopg.Error) -> Exception:
    """Return the error to raise for a failed connection: an InvalidArgument if no further try can succeed."""
    text = " ".join(str(error).split()).removeprefix("connection failed: ")
    # The driver refuses bad parameters before it connects, without an SQLSTATE.
    if (isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None) or _NEVER.search(text):
        return InvalidArgument(
            f"no connection can be opened: {text}",
            "Correct it in the connection string, or in the Airflow connection and its extra.",
        )
    return translate(error)


def _given(conninfo: str, arguments: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = DEFAULTS | parameters(conninfo) | arguments | ENCODING
    if "prepare_threshold" in given:
        given["prepare_threshold"] = number_or_none(given["prepare_threshold"])
    return given


def _disable_prepare(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: Any, given: Mapping[str, Any]
) -> psycopg.IsolationLevel | None:
    """Prepare nothing behind a pooler, and return the isolation level to begin transactions with, if it matters."""
    pid, isolation, _ = row
    # A pooler makes up the process id that it gives to a client.
    if pid == conn.info.backend_pid:
        return None
    if "prepare_threshold" not in given:
        conn.prepare_threshold = None
    if isolation not in ("read committed", "read uncommitted"):
        # Set for each transaction, because behind a pooler a setting of the session does not outlive the transaction.
        return psycopg.IsolationLevel.READ_COMMITTED
    return None


def read_any_json(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let JSON that Python cannot read arrive as Unreadable, unless the caller chose how JSON is read.

    Otherwise one message of a batch makes all of it unreadable, after it was leased.
    """
    if conn.adapters.get_loader(JSONB, Format.BINARY) is JsonbBinaryLoader:
        set_json_loads(read_json, conn)


def check_version(conn: psycopg.Connection[Any]) -> None:
    """Raise SchemaMissing, SchemaTooOld or SchemaTooNew unless this package can work with the schema.

    A login that may not ask is let through. A newer schema is accepted if it says that it supports this package, so
    that workers of both versions run side by side during an upgrade.
    """
    try:
        (found, oldest), needed = _versions(conn), code_version()
    except PermissionDenied:
        return  # the next call is refused too, and names the missing privilege; or it was granted alone
    if found < needed:
        raise SchemaTooOld(f"schema messages has version {found}, this package needs {needed}", INSTALL)
    if oldest > needed:
        raise SchemaTooNew(
            f"schema messages needs packages that know version {oldest}, this one knows {needed}", UPGRADE
        )


def current_version(conn: psycopg.Connection[Any]) -> int:
    """Return the version of the schema in the database; SchemaMissing if it is not installed."""
    return _versions(conn)[0]


def _versions(conn: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return the newest migration, and the oldest version whose packages may work next to it."""
    try:
        # A transaction of its own, so that an error does not spoil the caller's.
        with within(conn, _PATIENCE), conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            ((newest, oldest),) = cursor.execute(query("versions")).fetchall()
    except psycopg.Error as error:
        if error.sqlstate not in _UNDEFINED:
            raise translate(error) from error
        raise SchemaMissing(f"schema messages is not installed in database {conn.info.dbname!r}", INSTALL) from error
    return newest, oldest


def process_name() -> str:
    """Return the name of this process for `locked_by` and `handled_by`: `pid@host`."""
    return f"{os.getpid()}@{socket.gethostname()}"


def parameters(conninfo: str) -> dict[str, Any]:
    """Return the parameters in a connection string or URL; InvalidArgument, without quoting it, if it is invalid.

    Besides those of libpq it may have `prepare_threshold`: a number, or none.
    """
    found = _parsed(conninfo)
    if found is None and (thresholds := _THRESHOLD.findall(conninfo)):
        found = _parsed(_THRESHOLD.sub("", conninfo))
        if found is not None and len(thresholds) > 1:
            raise InvalidArgument(f"prepare_threshold is given {len(thresholds)} times. Give it once.")
        if found is not None:
            found["prepare_threshold"] = number_or_none(thresholds[0].strip("'"))
    # Raised outside of the handler, or the error of libpq, which quotes the string, would be its cause.
    if found is None or _is_misread(found):
        raise InvalidArgument(
            "the connection string is not valid. Write postgresql://user@host:5432/database, or host=… dbname=…; "
            "in a URL write / @ : % of a password as %2F %40 %3A %25, else put values with spaces in quotes."
        )
    return found


def pause_after(failures: int) -> float:
    """Return the seconds until the next try after so many failures in a row: from about half a second up to 30."""
    # The pauses grow and are random, so that clients do not all return at once to a server that restarts.
    return min(0.5 * 2.0 ** min(failures - 1, 6), 30.0) * random.uniform(0.5, 1.0)


def conninfo_of(parameters: Mapping[str, Any]) -> str:
    """Return the connection string with these parameters, to be read by `parameters` again."""
    libpq = {name: value for name, value in parameters.items() if name != "prepare_threshold"}
    said = f" prepare_threshold={parameters['prepare_threshold']}" if "prepare_threshold" in parameters else ""
    return make_conninfo("", **libpq) + said


def number_or_none(given: Any) -> int | None:
    """Return a `prepare_threshold`, also of a text: the extra of an Airflow connection that is a URL has only texts."""
    text = str(given)
    if not text.isdecimal() and text.lower() not in ("none", "null"):
        raise InvalidArgument(f"prepare_threshold is {given!r}. Give a whole number from 0, or none.")
    return int(text) if text.isdecimal() else None


def _parsed(conninfo: str) -> dict[str, Any] | None:
    try:
        return conninfo_to_dict(conninfo)
    except psycopg.Error:
        return None


def _is_misread(found: dict[str, Any]) -> bool:
    """Return whether part of a password with / or @ became a host, port or database, which libpq would quote."""
    # A host may begin with @: that is an abstract socket.
    names = f"{found.get('host', '').removeprefix('@')}{found.get('dbname', '')}"
    return "@" in names or not _PORT.fullmatch(str(found.get("port", "")))
