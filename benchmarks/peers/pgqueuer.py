"""PgQueuer: measured through its own Python client only, which does much of its work."""

from __future__ import annotations

from typing import Final

from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment

from benchmarks.peer import Peer
from benchmarks.server import Connection


def _install(conn: Connection) -> None:
    conn.execute(QueryBuilderEnvironment().build_install_query().encode())


PGQUEUER: Final = Peer(
    name="pgqueuer",
    install=_install,
    empty="TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics",
    add="INSERT INTO pgqueuer (priority, entrypoint, payload, status)"
    " SELECT 0, 'bench', convert_to(%(body)s, 'UTF8'), 'queued' FROM generate_series(1, %(count)s)",
    tables=["pgqueuer"],
    count="SELECT count(*) FROM pgqueuer",
)
