"""Fires when messages are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Final

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, Rule, check, optional, queue_name, text, truth, whole
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.core.message import RESULTS
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids
from airflow_provider_pgqueue.triggers.hub import notification_stream
from airflow_provider_pgqueue.triggers.notification import NOTIFY_AFTER, InvalidTriggerArgument
from airflow_provider_pgqueue.triggers.watch import OutcomeWatch


def _ids(value: Any) -> str | None:
    good = isinstance(value, list) and all(type(one) is int and 0 < one < 2**63 for one in value)
    return None if good else "Give a list of ids of messages."


def _fail_on(value: Any) -> str | None:
    good = isinstance(value, list | tuple) and all(one in RESULTS for one in value)
    return None if good else f"Give a list of {', '.join(RESULTS)}."


OUTCOME_RULES: Final[Mapping[str, Rule]] = {
    "ids": optional(_ids),
    "reference": optional(text),
    "expected": optional(whole(0, 1_000_000)),
    "queue_name": optional(queue_name),
    "fail_on": _fail_on,
    "follow_requeues": truth,
    "poll_interval": POLL_INTERVAL,
}


class PgQueueOutcomeTrigger(BaseTrigger):
    """Fires once, when messages are finished, with the number of them by result: `{"success": 1, "failed": 0, …}`.

    It looks at once, so that a killed triggerer costs only time. A message that will be delivered again is not
    finished. All triggers of a triggerer share one session per connection.

    :param ids: the messages; or give a `reference`.
    :param reference: the reference of the messages.
    :param expected: how many messages with the reference there must be.
    :param queue_name: the queue of the messages with the reference; any by default.
    :param fail_on: the results after which the task must resume, to fail.
    :param follow_requeues: a dead message is not finished until it is dismissed, or requeued and the new one finished.
    :param pgqueue_conn_id: the Airflow connection.
    :param poll_interval: the time between two polls.
    :param end_task: end the task in the triggerer, unless it has to fail.
    :param with_result: False ends the task without a result.
    :param notify_after: the time before which the task does not resume in a worker.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **OUTCOME_RULES,
        "pgqueue_conn_id": text,
        "end_task": truth,
        "with_result": truth,
        "notify_after": NOTIFY_AFTER,
    }

    def __init__(
        self,
        *,
        ids: list[int] | None = None,
        reference: str | None = None,
        expected: int | None = None,
        queue_name: str | None = None,
        fail_on: Sequence[str] = (),
        follow_requeues: bool = False,
        pgqueue_conn_id: str = "pgqueue_default",
        poll_interval: Duration = 5.0,
        end_task: bool = False,
        with_result: bool = True,
        notify_after: Duration = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids = ids
        self.reference = reference
        self.expected = expected
        self.queue_name = queue_name
        self.fail_on = list(fail_on) if isinstance(fail_on, tuple) else fail_on
        self.follow_requeues = follow_requeues
        self.pgqueue_conn_id = pgqueue_conn_id
        self.poll_interval = seconds(poll_interval)
        self.end_task = end_task
        self.with_result = with_result
        self.notify_after = seconds(notify_after)
        check_connection_ids({"pgqueue_conn_id": pgqueue_conn_id}, InvalidTriggerArgument)
        check(vars(self), self.rules, InvalidTriggerArgument)
        if (ids is None) == (reference is None):
            raise InvalidTriggerArgument("ids and reference are both given, or neither", "Give one of them.")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and exactly the arguments of `__init__`."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {argument: getattr(self, argument) for argument in self.rules}

    def watch(self) -> OutcomeWatch:
        """Return a new watch of the messages."""
        return OutcomeWatch(
            ids=self.ids,
            reference=self.reference,
            expected=self.expected,
            queue_name=self.queue_name or "",
            follow_requeues=self.follow_requeues,
            poll_interval=self.poll_interval,
        )

    def is_bad(self, counts: Mapping[str, int]) -> bool:
        """Return whether the task has to fail."""
        return any(counts.get(one) for one in (*self.fail_on, "unknown"))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        clock = asyncio.get_running_loop().time
        resume_at = clock() + self.notify_after
        async with aclosing(notification_stream(self.pgqueue_conn_id, self.watch())) as notifications:
            counts = await anext(notifications)
        # dag.test() resumes the task with any event, also with one that ends the task.
        if self.end_task and self.task_instance is not None and not self.is_bad(counts):
            yield TaskSuccessEvent(xcoms={"return_value": counts} if self.with_result else None)
            return
        await asyncio.sleep(max(0.0, resume_at - clock()))
        yield TriggerEvent(counts)
