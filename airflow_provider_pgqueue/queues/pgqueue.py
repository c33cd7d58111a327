"""Registers `pgqueue` with common-messaging: `MessageQueueTrigger(scheme="pgqueue", queue_name=…)`."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


class PgQueueMessageQueueProvider(BaseMessageQueueProvider):
    """What `MessageQueueTrigger(scheme="pgqueue", queue_name=…)` uses: it makes a `PgQueueMessageTrigger`.

    The trigger gets all arguments except `scheme`. No DAG names this class.
    """

    scheme = "pgqueue"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that watches a queue."""
        return PgQueueMessageTrigger
