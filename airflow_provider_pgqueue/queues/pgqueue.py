"""Registers `pgqueue` with common-messaging: `MessageQueueTrigger(scheme="pgqueue", queue_name=…)`.

`MessageQueueTrigger(queue="pgqueue://CONNECTION/QUEUE")` works too; common-messaging warns that `queue` is old.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_pgqueue.assets.pgqueue import queue_of
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


class PgQueueMessageQueueProvider(BaseMessageQueueProvider):
    """What `MessageQueueTrigger(scheme="pgqueue", queue_name=…)` uses: it makes a `PgQueueMessageTrigger`.

    The trigger gets all arguments except `scheme`. No DAG names this class.
    """

    scheme = "pgqueue"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that watches a queue."""
        return PgQueueMessageTrigger

    def queue_matches(self, queue: str) -> bool:
        """Return whether this is the URI of a queue of ours."""
        return queue.startswith("pgqueue://")

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the queue and the connection that a URI names."""
        return queue_of(queue)
