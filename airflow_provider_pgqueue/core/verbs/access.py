"""Which role may use which queue."""

from __future__ import annotations

from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, one


def grant_queue(queue_name: str, role_name: str, privilege: str) -> Statement[bool]:
    """Allow a role to `publish` to, `consume` from or `observe` this queue; return whether that is new.

    From the first grant on the role is limited to the queues granted to it.
    """
    return Statement("grant_queue", locals(), one)


def revoke_queue(queue_name: str, role_name: str, privilege: str | None = None) -> Statement[int]:
    """Revoke one privilege on a queue or all, and return their number. The role stays limited to its queues."""
    return Statement("revoke_queue", locals(), one)


def queue_grants() -> Statement[list[Row]]:
    """List what was granted: `queue_name`, `role_name`, `privilege`, `granted_at`, `granted_by`."""
    return Statement("queue_grants", {}, list)
