"""Fires when messages are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, Rule, check, text, truth
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids
from airflow_provider_pgqueue.triggers.doorbell import RING_AFTER, InvalidTriggerArgument
from airflow_provider_pgqueue.triggers.hub import rings
from airflow_provider_pgqueue.triggers.watch import OutcomeWatch


def _ids(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(type(one) is int and 0 < one < 2**63 for one in value)
    return None if good else "Give a list of ids of messages."


class PgQueueOutcomeTrigger(BaseTrigger):
    """Fires once, when all these messages are finished: `{"outcomes": [{"message_id", "queue_name", "result", …}]}`.

    It looks in the tables first, so that a killed triggerer costs only time, and again at each notification.
    A message that will be delivered again is not finished.

    :param ids: the messages.
    :param pgqueue_conn_id: the Airflow connection. All triggers of a triggerer share one session per connection.
    :param poll_interval: the time between two looks when no notification arrives.
    :param follow_requeues: wait for the message that repeats a dead one.
    :param end_task: if all are a success, end the task in the triggerer, with the outcome of the first as its result.
    :param with_result: False ends the task without a result.
    :param ring_after: the time before which the task does not resume in a worker.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "ids": _ids,
        "pgqueue_conn_id": text,
        "poll_interval": POLL_INTERVAL,
        "follow_requeues": truth,
        "end_task": truth,
        "with_result": truth,
        "ring_after": RING_AFTER,
    }

    def __init__(
        self,
        *,
        ids: list[int],
        pgqueue_conn_id: str = "pgqueue_default",
        poll_interval: Duration = 10.0,
        follow_requeues: bool = False,
        end_task: bool = False,
        with_result: bool = True,
        ring_after: Duration = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids = ids
        self.pgqueue_conn_id = pgqueue_conn_id
        self.poll_interval = seconds(poll_interval)
        self.follow_requeues = follow_requeues
        self.end_task = end_task
        self.with_result = with_result
        self.ring_after = seconds(ring_after)
        check_connection_ids({"pgqueue_conn_id": pgqueue_conn_id}, InvalidTriggerArgument)
        check(vars(self), self.rules, InvalidTriggerArgument)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and exactly the arguments of `__init__`."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {argument: getattr(self, argument) for argument in self.rules}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        clock = asyncio.get_running_loop().time
        resume_at = clock() + self.ring_after
        watch = OutcomeWatch(ids=self.ids, follow_requeues=self.follow_requeues, poll_interval=self.poll_interval)
        async with aclosing(rings(self.pgqueue_conn_id, watch)) as doorbells:
            outcomes = (await anext(doorbells))["outcomes"]
        # dag.test() resumes the task with whatever it hears.
        can_end = self.end_task and self.task_instance is not None
        if can_end and all(one["result"] == "success" for one in outcomes):
            yield TaskSuccessEvent(xcoms={"return_value": outcomes[0]} if self.with_result else None)
            return
        await asyncio.sleep(max(0.0, resume_at - clock()))
        yield TriggerEvent({"outcomes": outcomes})
