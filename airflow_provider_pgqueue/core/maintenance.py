"""Runs maintenance in short transactions, on a session that is in no transaction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


def run_maintenance(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Run maintenance once, as `verbs.maintain()` does, and return its counts.

    On an autocommit connection each queue has transactions of its own, which end at most 5,000 leases each. Consumers
    can lease a freed message only after the commit, and have to skip it until then.
    """
    counts: Counter[str] = Counter()
    queue_name: str | None = ""
    while queue_name is not None:
        scanned = run(conn, verbs.scan_next(queue_name))
        queue_name = scanned.pop("queue_name")
        counts.update(scanned)
    # scan_next() has already notified consumers of the messages in the queues.
    done = run(conn, verbs.maintain(with_queues=False))
    return done | {name: number + done.get(name, 0) for name, number in counts.items()}
