"""Opens connections that notice a dead network and say who they are."""

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


def connect(conninfo: str = "", **arguments: Any) -> psycopg.Connection[Any]:
    """Return a new autocommit connection; ConnectionFailed if there is none to be had."""
    try:
        return psycopg.connect(conninfo, autocommit=True, **(DEFAULTS | arguments))
    except psycopg.Error as error:
        raise translate(error) from error


async def connect_async(conninfo: str = "", **arguments: Any) -> psycopg.AsyncConnection[Any]:
    """Do the same for an async connection."""
    try:
        return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, **(DEFAULTS | arguments))
    except psycopg.Error as error:
        raise translate(error) from error


def process_name() -> str:
    """Return who this process is, for `locked_by` and `handled_by`: pid and host."""
    return f"{os.getpid()}@{socket.gethostname()}"
