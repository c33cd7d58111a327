"""DBOS: workflows on PostgreSQL, which start from queues; measured through its own Python client only."""

from __future__ import annotations

from typing import Final

from benchmarks.peer import Peer
from benchmarks.server import Connection


def _install(conn: Connection) -> None:
    from dbos import DBOS

    at = conn.info
    DBOS.migrate(f"postgresql://{at.user}@{at.host}:{at.port}/{at.dbname}")


DBOS_PEER: Final = Peer(
    name="dbos",
    install=_install,
    empty="TRUNCATE dbos.workflow_status CASCADE",
    add="SELECT count(dbos.enqueue_workflow('bench', 'bench', ARRAY[%(body)s::json]))"
    " FROM generate_series(1, %(count)s)",
    tables=["dbos.workflow_status", "dbos.operation_outputs"],
    count="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
)
