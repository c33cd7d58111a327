"""Waits for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_provider_pgqueue.core.argument import Rule
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.sensors.sensor import NotificationSensor
from airflow_provider_pgqueue.triggers.message import MESSAGE_RULES, PgQueueMessageTrigger


class PgQueueMessageSensor(NotificationSensor):
    """Waits until a queue has messages to lease; the result is `{"queue_name", "ready", "oldest_age", "topics"}`.

    The result means what the notification of a `PgQueueMessageTrigger` means. The further parameters are
    those of `NotificationSensor`.

    :param min_messages: how many ready messages to wait for.
    :param max_wait: accept fewer when the oldest has been ready for this long.
    """

    template_fields: Sequence[str] = ("queue_name", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {**NotificationSensor.rules, **MESSAGE_RULES}
    trigger_class = PgQueueMessageTrigger

    def __init__(
        self,
        *,
        min_messages: int = 1,
        max_wait: Duration | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_wait=max_wait, **kwargs)
        self.min_messages = min_messages
        self.check_written()
        if self.min_messages == 1:
            self._check_idle("min_messages", max_wait=None)
