"""Waits for dead messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

from airflow_provider_pgqueue.core.argument import Rule, optional
from airflow_provider_pgqueue.core.argument import results as some_results
from airflow_provider_pgqueue.sensors.doorbell import DoorbellArguments, DoorbellSensor
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger


class PgQueueDeadMessageSensor(DoorbellSensor):
    """Waits until a queue has dead messages without a remedy and without a lease.

    The result is `{"queue_name", "waiting", "newest_id", "oldest_age", "causes"}`, where `causes` groups
    them by fingerprint, as `PgQueueDeadMessageTrigger` says. A `PgQueueDispatchDeadOperator` after it starts one
    remediation run for each cause. The further parameters are those of `DoorbellSensor`.

    :param results: only dead messages with these results, such as `["rejected"]`; any by default.
    """

    template_fields = ("queue_name", "pgqueue_conn_id", "results")
    rules: ClassVar[Mapping[str, Rule]] = {**DoorbellSensor.rules, "results": optional(some_results)}
    trigger_class = PgQueueDeadMessageTrigger
    waits_for = "dead messages of"

    def __init__(self, *, results: Sequence[str] | None = None, **kwargs: Unpack[DoorbellArguments]) -> None:
        super().__init__(**kwargs)
        self.results = results
        self.check_written()
