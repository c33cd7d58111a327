"""What the operators that handle ready messages, or wait for some, have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, WAIT_TIMEOUT, Rule, optional, truth
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta, seconds
from airflow_provider_pgqueue.tasks.task import AT_LEAST_ONE, QueueTask
from airflow_provider_pgqueue.triggers.doorbell import SAFE_TO_RESUME


class WaitingTask(QueueTask):
    """Handles the ready messages of a queue; if there are none, it may wait in the triggerer, without a worker slot.

    :param queue_name: the queue.
    :param wait_for_messages: when there is nothing to do, wait in the triggerer.
    :param wait_timeout: fail the task when a wait takes longer. Airflow's `execution_timeout` does not: it ends only
        what runs in a worker, and a deferred task does not.
    :param poll_interval: the time between two looks while waiting when no notification arrives.
    """

    reads_queue = True
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": argument.queue_name,
        "wait_for_messages": truth,
        "wait_timeout": optional(WAIT_TIMEOUT),
        "poll_interval": POLL_INTERVAL,
    }

    def __init__(
        self,
        *,
        queue_name: str,
        wait_for_messages: bool = False,
        wait_timeout: Duration | None = None,
        poll_interval: Duration = 30.0,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.queue_name = queue_name
        self.wait_for_messages = wait_for_messages
        self.wait_timeout = wait_timeout
        self.poll_interval = poll_interval

    def check_written(self) -> None:
        """Check the arguments as they were written, also those that only a wait needs."""
        super().check_written()
        if not self.wait_for_messages:
            self._check_idle("wait_for_messages", wait_timeout=None, poll_interval=30.0)

    @abstractmethod
    def _trigger(self, ring_after: float) -> BaseTrigger:
        """Return the trigger that waits; it rings after so many seconds at the earliest."""

    def _wait(self, fruitless: int) -> None:
        """Defer, after this many waits that ended with nothing to do."""
        # Others may hold what is ready, in a way that nobody sees: each wait for nothing makes the next one longer.
        longest = max(seconds(self.poll_interval), SAFE_TO_RESUME)
        self.defer(
            trigger=self._trigger(min(SAFE_TO_RESUME * 2 ** min(fruitless, 10), longest)),
            method_name="execute_complete",
            kwargs={"fruitless": fruitless + 1},
            timeout=None if self.wait_timeout is None else as_timedelta(self.wait_timeout),
        )
