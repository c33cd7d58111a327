"""The whole upkeep from a session that is in no transaction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


def do_upkeep(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Do one round of the upkeep, as `verbs.upkeep()` does, and return its counts.

    On an autocommit connection each queue has transactions of its own, which end 5,000 leases at most: what a
    transaction has freed, consumers can lease only after its commit, and until then they have to pass over it.
    """
    counts: Counter[str] = Counter()
    queue_name: str | None = ""
    while queue_name is not None:
        looked = run(conn, verbs.look_at_next(queue_name))
        queue_name = looked.pop("queue_name")
        counts.update(looked)
    # What look_at_next() rang for is not rung for twice.
    done = run(conn, verbs.upkeep(with_queues=False))
    return done | {name: number + done.get(name, 0) for name, number in counts.items()}
