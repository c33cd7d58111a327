"""Fires when a queue has open dead messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Unpack

from airflow_provider_pgqueue.core.argument import Rule, optional
from airflow_provider_pgqueue.core.argument import results as some_results
from airflow_provider_pgqueue.triggers.notification import NotificationTrigger, TriggerArguments
from airflow_provider_pgqueue.triggers.watch import DeadMessageWatch


class PgQueueDeadMessageTrigger(NotificationTrigger):
    """Fires a notification `{"queue_name", "waiting", "newest_id", "oldest_age", "causes"}` when dead messages wait.

    Dead messages with a lease or a resolution do not count. `newest_id` is the id of the newest in the archive,
    `oldest_age` the seconds since the oldest died. `causes` has the twenty most frequent: `{"result", "fingerprint",
    "waiting", "first_at", "last_at", "newest_id"}`; no bodies and no texts of errors. The further parameters are those
    of `NotificationTrigger`.

    :param results: only dead messages with these results, such as `["rejected"]`; any by default.
    """

    rules: ClassVar[Mapping[str, Rule]] = {**NotificationTrigger.rules, "results": optional(some_results)}
    watch_class = DeadMessageWatch

    def __init__(self, *, results: list[str] | None = None, **kwargs: Unpack[TriggerArguments]) -> None:
        super().__init__(**kwargs)
        self.results = results
        self.check_arguments()
