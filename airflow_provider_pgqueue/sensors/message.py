"""Waits for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

from airflow_provider_pgqueue.core.argument import Rule
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.sensors.doorbell import DoorbellArguments, DoorbellSensor
from airflow_provider_pgqueue.triggers.message import MESSAGE_RULES, PgQueueMessageTrigger


class PgQueueMessageSensor(DoorbellSensor):
    """Waits until a queue has messages to lease; the result is `{"queue_name", "ready", "oldest_age", "topics"}`.

    The result means what the doorbell of a `PgQueueMessageTrigger` means. The further parameters are
    those of `DoorbellSensor`.

    :param min_messages: how many ready messages to wait for.
    :param max_wait: accept fewer when the oldest has been ready for this long.
    """

    template_fields: Sequence[str] = ("queue_name", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {**DoorbellSensor.rules, **MESSAGE_RULES}
    trigger_class = PgQueueMessageTrigger
    idle_without: ClassVar[Mapping[str, str]] = {"max_wait": "min_messages"}

    def __init__(
        self,
        *,
        min_messages: int = 1,
        max_wait: Duration | None = None,
        **kwargs: Unpack[DoorbellArguments],
    ) -> None:
        super().__init__(max_wait=max_wait, **kwargs)
        self.min_messages = min_messages
        self.check_written()
