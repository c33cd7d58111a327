"""Which role may use which queue."""

from __future__ import annotations

from airflow_provider_pgqueue.core.client import Statement, one
from airflow_provider_pgqueue.core.message import Row


def grant_queue(queue_name: str, role_name: str, privilege: str) -> Statement[bool]:
    """Let a role `publish` to, `consume` from or `observe` this queue, and from now on only queues granted to it."""
    return Statement("grant_queue", dict(locals()), one)


def revoke_queue(queue_name: str, role_name: str, privilege: str | None = None) -> Statement[int]:
    """Take back one privilege or all; how many there were. The role stays limited to its queues."""
    return Statement("revoke_queue", dict(locals()), one)


def queue_grants() -> Statement[list[Row]]:
    """List what was granted: `queue_name`, `role_name`, `privilege`, `granted_at`, `granted_by`."""
    return Statement("queue_grants", {}, list)
