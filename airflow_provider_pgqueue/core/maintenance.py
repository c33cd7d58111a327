"""All of maintenance from a session that is in no transaction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


def run_maintenance(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Run maintenance once, as `verbs.maintain()` does, and return its counts.

    On an autocommit connection each queue has transactions of its own, which end 5,000 leases at most: what a
    transaction has freed, consumers can lease only after its commit, and until then they have to pass over it.
    """
    counts: Counter[str] = Counter()
    queue_name: str | None = ""
    while queue_name is not None:
        scanned = run(conn, verbs.scan_next(queue_name))
        queue_name = scanned.pop("queue_name")
        counts.update(scanned)
    # maintain() must not notify again of what scan_next() has notified.
    done = run(conn, verbs.maintain(with_queues=False))
    return done | {name: number + done.get(name, 0) for name, number in counts.items()}
