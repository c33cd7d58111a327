"""What happened before the test."""

from __future__ import annotations

from typing import Any

import psycopg


def died_at(conn: psycopg.Connection[Any], id_: int, moment: str) -> None:
    """Let a dead message have died at another moment, also before the archive began."""
    conn.execute(
        "ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins"
    )
    # A row that changes its partition is inserted, and so listed as dead again.
    conn.execute("DELETE FROM messages.dead_message WHERE id = %s", [id_])
    conn.execute("UPDATE messages.message_archive SET archived_at = %s WHERE id = %s", [moment, id_])
    conn.execute(
        """INSERT INTO messages.dead_message (id, archived_at, queue_name, result, fingerprint)
           SELECT a.id, a.archived_at, a.queue_name, a.result, a.fingerprint
             FROM messages.message_archive a WHERE a.id = %s ON CONFLICT DO NOTHING""",
        [id_],
    )
