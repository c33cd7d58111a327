"""Waits for those who hold the log back without being part of a test: other databases of the server, autovacuum."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.waiting import until

_FOREIGNERS = """
SELECT FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND (datname IS DISTINCT FROM current_database() OR backend_type <> 'client backend')
"""


def let_foreigners_pass(conn: psycopg.Connection[Any]) -> None:
    """Return at a time when nobody else writes: whoever begins then is younger than all that the test wrote."""
    until(lambda: not conn.execute(_FOREIGNERS).rowcount, what="those who write in other databases")
