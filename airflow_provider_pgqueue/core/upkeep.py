"""The whole upkeep from a session that is in no transaction."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


def do_upkeep(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Do one round of the upkeep, as `verbs.upkeep()` does, and return its counts.

    On an autocommit connection expired leases are ended 5,000 at a time, each time in a transaction of its own: what a
    transaction has freed, consumers can lease only after its commit, and until then they have to pass over it.
    """
    freed = archived = 0
    place: dict[str, Any] = {}
    while True:
        place = run(conn, verbs.sweep_queues(**place))
        freed += place.pop("freed")
        archived += place.pop("archived")
        if place["queue_name"] is None:
            break
    done = run(conn, verbs.upkeep())
    return done | {"freed": freed + done.get("freed", 0), "archived": archived + done.get("archived", 0)}
