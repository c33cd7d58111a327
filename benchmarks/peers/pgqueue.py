"""Ours: the schema `messages` of this repository."""

from __future__ import annotations

from typing import Final

from airflow_provider_pgqueue.core import migrate
from benchmarks.peer import Peer
from benchmarks.server import Connection


def _install(conn: Connection) -> None:
    migrate(conn)
    conn.execute("SELECT messages.create_queue('bench')")


PGQUEUE: Final = Peer(
    name="pgqueue",
    install=_install,
    empty="TRUNCATE messages.message, messages.message_archive, messages.timer",
    add="INSERT INTO messages.message (queue_name, message)"
    " SELECT 'bench', %(body)s::jsonb FROM generate_series(1, %(count)s)",
    tables=["messages.message", "messages.timer"],
    count="SELECT count(*) FROM messages.message",
    delayed="INSERT INTO messages.message (queue_name, message, visible_at)"
    " SELECT 'bench', %(body)s::jsonb, clock_timestamp() + interval '1 hour' FROM generate_series(1, %(count)s)",
    leased="SELECT count(*) FROM messages.lease('bench', %(count)s, '1 hour')",
)
