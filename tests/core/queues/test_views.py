"""What a view shows, a client can read."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core import run, verbs

Connection = psycopg.Connection[Any]


def test_no_view_shows_a_time_that_a_driver_cannot_read(conn: Connection) -> None:
    """Of a group, what waits behind the head has no time: it becomes ready when the head ends."""
    run(conn, verbs.create_queue("orders", max_attempts=1))
    head, behind = run(conn, verbs.publish_batch("orders", [1, 2], group_keys=["a", "a"]))
    run(conn, verbs.lease("orders"))
    found = conn.execute("SELECT table_name FROM information_schema.views WHERE table_schema = 'messages'").fetchall()
    assert len(found) > 4
    for (view,) in found:
        conn.execute(sql.SQL("TABLE messages.{}").format(sql.Identifier(view))).fetchall()
    times = conn.execute("SELECT id, visible_at IS NULL FROM messages.message_overview ORDER BY id").fetchall()
    assert times == [(head, False), (behind, True)]
