"""procrastinate: one job at a time; finished jobs stay in its table, with an event for each change of state."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from benchmarks.peer import Peer
from benchmarks.server import Connection

TASK: Final = "bench"


def _install(conn: Connection) -> None:
    conn.execute(files("procrastinate").joinpath("sql", "schema.sql").read_text().encode())


PROCRASTINATE: Final = Peer(
    name="procrastinate",
    install=_install,
    empty="TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
    add="INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
    " SELECT 'bench', 'bench', %(body)s::jsonb FROM generate_series(1, %(count)s)",
    tables=["procrastinate_jobs", "procrastinate_events"],
    count="SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'",
)
