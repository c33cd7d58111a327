"""Fires when a queue has messages to lease."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgqueue.triggers.doorbell import DoorbellTrigger
from airflow_provider_pgqueue.triggers.watch import MessageWatch


class PgQueueMessageTrigger(DoorbellTrigger):
    """Fires a doorbell `{"queue_name", "ready", "oldest_age"}` when the queue has messages to lease.

    `ready` is counted up to about a thousand, `oldest_age` is in seconds. The further parameters are those of
    `DoorbellTrigger`.

    :param min_messages: fire only when this many messages are ready.
    :param max_wait: seconds after which fewer are enough, counted from when the oldest became ready.
    """

    def __init__(self, *, min_messages: int = 1, max_wait: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.min_messages = min_messages
        self.max_wait = max_wait

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and exactly the arguments of `__init__`."""
        classpath, arguments = super().serialize()
        return classpath, arguments | {"min_messages": self.min_messages, "max_wait": self.max_wait}

    def watch(self) -> MessageWatch:
        """Return a new watch of the queue."""
        return MessageWatch(
            queue_name=self.queue_name,
            poll_interval=self.poll_interval,
            ring_every=self.ring_every,
            min_messages=self.min_messages,
            max_wait=self.max_wait,
        )
