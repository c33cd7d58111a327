"""Waits for dead messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, optional
from airflow_provider_pgqueue.core.argument import results as some_results
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.sensors.sensor import NotificationSensor
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_MOST: Final = 1000  # Airflow maps a task over 1,024 results


class PgQueueDeadMessageSensor(NotificationSensor):
    """Waits until a queue has open dead messages that nobody has leased, and returns their causes.

    The result is a list, over which a task can be mapped, with an entry for each cause, the most frequent first:
    `{"queue_name", "result", "fingerprint", "waiting", "first_at", "last_at", "newest_id"}`. `waiting` is the number
    of messages, and `newest_id` changes whenever one more dies; there are no bodies and no texts of errors. Of more
    than a thousand causes, the rest comes next time. The sensor ends in a worker, because Airflow maps no task over
    what a triggerer returns. The further parameters are those of `NotificationSensor`.

    :param results: only dead messages with these results, such as `["rejected"]`; any by default.
    """

    template_fields = ("queue_name", "pgqueue_conn_id", "results")
    rules: ClassVar[Mapping[str, Rule]] = {**NotificationSensor.rules, "results": optional(some_results)}
    trigger_class = PgQueueDeadMessageTrigger
    waits_for = "dead messages of"

    def __init__(self, *, results: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results = results
        self.check_written()

    @property
    def output(self) -> XComArg:
        """The list, for the arguments of another task, or to map it over."""
        return PlainXComArg(self)

    @property
    def _ends_in_worker(self) -> bool:
        return True

    def _poll(self) -> list[dict[str, Any]] | None:
        rows = PgQueueHook(self.pgqueue_conn_id).run(verbs.dead_queues([self.queue_name]))
        causes = [
            {"queue_name": row.queue_name, **cause}
            for row in rows
            if self.results is None or row.result in self.results
            for cause in row.causes
        ]
        return sorted(causes, key=lambda cause: -cause["waiting"])[:_MOST] or None

    def _result(self, found: Any) -> Any:
        return found

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the current causes; an empty list if all messages were resolved meanwhile."""
        return self._poll() or []
