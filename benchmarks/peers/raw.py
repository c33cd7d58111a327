"""The limit: a table of three columns; a consumer that dies after its DELETE has lost the messages."""

from __future__ import annotations

from typing import Final

from benchmarks.peer import Peer
from benchmarks.server import Connection


def _install(conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " created_at timestamptz NOT NULL DEFAULT now(), message jsonb NOT NULL)"
    )


RAW: Final = Peer(
    name="raw",
    install=_install,
    empty="TRUNCATE raw",
    add="INSERT INTO raw (message) SELECT %(body)s::jsonb FROM generate_series(1, %(count)s)",
    tables=["raw"],
    count="SELECT count(*) FROM raw",
)
