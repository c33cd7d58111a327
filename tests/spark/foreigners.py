"""Waits for those who hold the log back without being part of a test: other databases of the server, autovacuum."""

from __future__ import annotations

import time
from typing import Any

import psycopg

_FOREIGNERS = """
SELECT FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND (datname IS DISTINCT FROM current_database() OR backend_type <> 'client backend')
"""


def let_foreigners_pass(conn: psycopg.Connection[Any]) -> None:
    """Return at a moment when nobody else writes: whoever begins then is younger than all that the test wrote."""
    deadline = time.monotonic() + 60
    while conn.execute(_FOREIGNERS).rowcount:
        assert time.monotonic() < deadline, "somebody else writes for a minute"
        time.sleep(0.01)
