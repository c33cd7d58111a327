"""Dead messages of another time than now."""

from __future__ import annotations

from typing import Any

import psycopg


def died_at(conn: psycopg.Connection[Any], id_: int, moment: str) -> None:
    """Let a dead message have died at another time, also before the archive began."""
    conn.execute(
        "ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins"
    )
    conn.execute("UPDATE messages.message_archive SET archived_at = %s WHERE id = %s", [moment, id_])
    conn.execute("UPDATE messages.dead_message SET archived_at = %s WHERE id = %s", [moment, id_])
