"""Declares a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import (
    Rule,
    json_object,
    json_value,
    optional,
    queue_name,
    text,
    truth,
    whole,
)
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.task import QueueTask, TaskArguments

if TYPE_CHECKING:
    from airflow.sdk import Context


_WORDS: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


def _cron(value: Any) -> str | None:
    """Judge the shape of a cron expression; `messages.parse_cron` judges its fields."""
    if isinstance(value, str) and (len(value.split()) == 5 or value.strip().lower() in _WORDS):
        return text(value)
    fields = "minute, hour, day of month, month, day of week"
    return f"Give five fields ({fields}), or @hourly, @daily, @weekly, @monthly, @yearly."


class PgQueueScheduleOperator(QueueTask):
    """Makes the database publish a message at each tick of a cron expression, whether Airflow runs or not.

    Running it again is safe, and after a change necessary. The result is `{"schedule_name", "new"}`. The body is
    neither logged nor put into XCom. Schedules need pg_cron, or PgQueueUpkeepOperator every minute.

    :param schedule_name: the name of the schedule; the rule for queue names applies.
    :param cron: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, @monthly, @yearly.
    :param queue_name: the queue to publish to.
    :param message: the body of each message; the texts in it are templates, rendered when this task runs, not at the
        ticks. What they render to is not stored by Airflow, nor shown under Rendered Template.
    :param time_zone: the time zone that `cron` is read in, such as Europe/Berlin.
    :param priority: from 0 to 9; higher is leased first.
    :param headers: an object kept next to each body; `schedule` and `tick` are added.
    :param paused: True pauses it, False resumes it; None leaves it as it is.
    """

    template_fields: Sequence[str] = (
        "schedule_name",
        "cron",
        "queue_name",
        "message",
        "time_zone",
        "headers",
        "pgqueue_conn_id",
    )
    template_fields_renderers = {"headers": "json"}  # noqa: RUF012 as Airflow has it
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "schedule_name": queue_name,
        "cron": _cron,
        "queue_name": queue_name,
        "time_zone": text,
        "priority": whole(0, 9),
        "headers": optional(json_object),
        "message": json_value,
        "paused": optional(truth),
    }

    def __init__(
        self,
        *,
        schedule_name: str,
        cron: str,
        queue_name: str,
        message: Any,
        time_zone: str = "UTC",
        priority: int = 4,
        headers: Mapping[str, Any] | None = None,
        paused: bool | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.schedule_name = schedule_name
        self.cron = cron
        self.queue_name = queue_name
        self.message = message
        self.time_zone = time_zone
        self.priority = priority
        self.headers = headers
        self.paused = paused
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Declare the schedule, and return whether it is new."""
        statement = verbs.schedule(
            self.schedule_name,
            self.cron,
            self.queue_name,
            self.message,
            time_zone=self.time_zone,
            priority=self.priority,
            headers=self.headers,
            paused=self.paused,
        )
        new = PgQueueHook(self.pgqueue_conn_id).run(statement)
        self.log.info(
            "schedule %s of queue %s: %s (%s)", self.schedule_name, self.queue_name, self.cron, self.time_zone
        )
        return {"schedule_name": self.schedule_name, "new": new}
