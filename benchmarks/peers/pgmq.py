"""PGMQ, the SQL that its Python package carries."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from benchmarks.peer import Peer
from benchmarks.server import Connection

# What the Ruby client of PGMQ sets on a queue that is to be tuned; the SQL and the Python client set nothing.
TUNED: Final = """ALTER TABLE pgmq.q_bench SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01,
autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 2, autovacuum_analyze_scale_factor = 0.05)"""

# PGMQ's own notifications: for each statement, and at most four times a second, which is the default of its function.
NOTIFICATIONS: Final = "SELECT pgmq.enable_notify_insert('bench', 0)"
NOTIFICATIONS_THROTTLED: Final = "SELECT pgmq.enable_notify_insert('bench', 250)"


def version() -> str:
    """Return the version of its SQL."""
    return files("pgmq").joinpath("sql", "VERSION").read_text().strip()


def _install(conn: Connection) -> None:
    conn.execute(files("pgmq").joinpath("sql", "pgmq.sql").read_text().encode())
    conn.execute("SELECT pgmq.create('bench')")


PGMQ: Final = Peer(
    name="pgmq",
    install=_install,
    empty="TRUNCATE pgmq.q_bench, pgmq.a_bench",
    add="INSERT INTO pgmq.q_bench (vt, message)"
    " SELECT clock_timestamp(), %(body)s::jsonb FROM generate_series(1, %(count)s)",
    tables=["pgmq.q_bench"],
    count="SELECT count(*) FROM pgmq.q_bench",
    delayed="INSERT INTO pgmq.q_bench (vt, message)"
    " SELECT clock_timestamp() + interval '1 hour', %(body)s::jsonb FROM generate_series(1, %(count)s)",
    leased="SELECT count(*) FROM pgmq.read('bench', 3600, %(count)s)",
)
