"""Fires when a queue breaks."""

from __future__ import annotations

from typing import Unpack

from airflow_provider_pgqueue.triggers.doorbell import DoorbellTrigger, TriggerArguments
from airflow_provider_pgqueue.triggers.watch import BrokenQueueWatch


class PgQueueBrokenQueueTrigger(DoorbellTrigger):
    """Fires a doorbell `{"queue_name", "broken_since"}` when a queue with a `break_after` breaks.

    `broken_since` is a time in ISO format. A watcher fires once each time that the queue breaks, whatever `ring_every`
    says, and once more if it is started again meanwhile. The parameters are those of `DoorbellTrigger`.
    """

    watch_class = BrokenQueueWatch

    def __init__(self, **kwargs: Unpack[TriggerArguments]) -> None:
        super().__init__(**kwargs)
        self.check_arguments()
