"""Waits for messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_pgqueue.sensors.doorbell import DoorbellSensor
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


class PgQueueMessageSensor(DoorbellSensor):
    """Waits until a queue has messages to lease; the result is `{"queue_name", "ready", "oldest_age"}`.

    It is JSON text. The further parameters are those of `DoorbellSensor`.

    :param min_messages: how many ready messages to wait for.
    :param max_wait: accept fewer when the oldest has been ready for this long, in seconds or as a timedelta.
    """

    def __init__(self, *, min_messages: int = 1, max_wait: timedelta | float | None = None, **kwargs: Any) -> None:
        super().__init__(max_wait=max_wait, **kwargs)
        self.min_messages = min_messages

    def _trigger(self) -> PgQueueMessageTrigger:
        return PgQueueMessageTrigger(
            queue_name=self.queue_name,
            pgqueue_conn_id=self.pgqueue_conn_id,
            poll_interval=self.poll_interval,
            min_messages=self.min_messages,
            max_wait=None if self.max_wait is None else self.max_wait.total_seconds(),
            end_task=True,
        )
