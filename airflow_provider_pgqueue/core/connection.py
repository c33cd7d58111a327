"""Opens connections that notice a dead network, say who they are, and see what others commit."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.errors import translate

# A cut link is noticed after about idle + count * interval seconds; the default of the system is two hours.
DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "pgqueue",
}
# A verb that waited for a lock looks again: in the snapshot of its beginning it would miss what the others did. Changes
# nothing where it is the default, because behind a pooler a setting may stay in the session of somebody else.
_READ_COMMITTED: Final = """
SELECT set_config('default_transaction_isolation', 'read committed', false)
 WHERE current_setting('default_transaction_isolation') IN ('repeatable read', 'serializable')
"""


def connect(conninfo: str = "", **arguments: Any) -> psycopg.Connection[Any]:
    """Return a new autocommit connection; ConnectionFailed if there is none to be had.

    Its transactions are READ COMMITTED, whatever the default of the role, database or server is.
    """
    try:
        conn = psycopg.connect(conninfo, autocommit=True, **(DEFAULTS | arguments))
        try:
            conn.execute(_READ_COMMITTED)
        except BaseException:
            conn.close()
            raise
    except psycopg.Error as error:
        raise translate(error) from error
    return conn


async def connect_async(conninfo: str = "", **arguments: Any) -> psycopg.AsyncConnection[Any]:
    """Do the same for an async connection."""
    try:
        conn = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, **(DEFAULTS | arguments))
        try:
            await conn.execute(_READ_COMMITTED)
        except BaseException:
            await conn.close()
            raise
    except psycopg.Error as error:
        raise translate(error) from error
    return conn


def process_name() -> str:
    """Return who this process is, for `locked_by` and `handled_by`: pid and host."""
    return f"{os.getpid()}@{socket.gethostname()}"
