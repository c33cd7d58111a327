"""Queues and their policy."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import TypedDict, Unpack

from airflow_provider_pgqueue.core.client import Statement, list_of, nothing, one
from airflow_provider_pgqueue.core.message import QueueStatus, ReadyQueue


class Policy(TypedDict, total=False):
    """What can be said about a queue; what is left out keeps its value, or the default of a new queue.

    `max_attempts` deliveries at most; `lease_for` when the consumer does not say; `notify` is `always`, `gated` or
    `off`; `backoff_first` is the pause after the first failure, which doubles up to `backoff_max`; `dedup_window` is
    how long a dedup key is remembered; `retention` of finished messages; `on_dead_head` says whether a dead message
    blocks its group (`block`) or not (`skip`); `max_leased` messages at once, `max_depth` unfinished ones. In
    `alter_queue` zero lifts `retention`, `max_leased` and `max_depth`.
    """

    max_attempts: int | None
    lease_for: timedelta | None
    notify: str | None
    max_body_bytes: int | None
    paused: bool | None
    backoff_first: timedelta | None
    backoff_max: timedelta | None
    dedup_window: timedelta | None
    retention: timedelta | None
    on_dead_head: str | None
    max_leased: int | None
    max_depth: int | None


def create_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[bool]:
    """Create a queue: True if it is new, False (and nothing changed) if it exists."""
    return Statement("create_queue", {"queue_name": queue_name, **policy}, one)


def alter_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[None]:
    """Change the policy of a queue, for waiting messages too; None keeps a value."""
    return Statement("alter_queue", {"queue_name": queue_name, **policy}, nothing)


def pause_queue(queue_name: str) -> Statement[None]:
    """Let nothing be leased any more; publishing goes on."""
    return Statement("pause_queue", dict(locals()), nothing)


def resume_queue(queue_name: str) -> Statement[None]:
    """End a pause and wake the consumers."""
    return Statement("resume_queue", dict(locals()), nothing)


def purge_queue(queue_name: str) -> Statement[int]:
    """Delete the messages that nobody holds, without archiving them; how many there were."""
    return Statement("purge_queue", dict(locals()), one)


def drop_queue(queue_name: str, *, force: bool = False) -> Statement[int]:
    """Remove a queue; how many unfinished messages went with it, which needs `force` (else QueueNotEmpty)."""
    return Statement("drop_queue", dict(locals()), one)


def status(queue_name: str | None = None) -> Statement[list[QueueStatus]]:
    """Each queue in numbers; counts every message."""
    return Statement("status", dict(locals()), list_of(QueueStatus))


def ready_queues(queue_names: Collection[str] | None = None, *, count_up_to: int = 1000) -> Statement[list[ReadyQueue]]:
    """Ask which queues have a message to lease now or later; one question for any number of waiting consumers."""
    arguments = {
        "queue_names": None if queue_names is None else list(queue_names),
        "count_up_to": count_up_to,
    }
    return Statement("ready_queues", arguments, list_of(ReadyQueue), {"queue_names": "text[]"})
