"""What the message sensor and the dead-message sensor have in common."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.triggers.doorbell import DoorbellTrigger
from airflow_provider_pgqueue.triggers.watch import Doorbell

if TYPE_CHECKING:
    from airflow.sdk import Context


class DoorbellSensor(BaseSensorOperator):
    """Waits in the triggerer for work in a queue, and ends there: it holds no worker slot and needs none to end.

    It looks first, and succeeds at once if there is work. Its result is the doorbell: numbers and no messages; the
    next task leases them. The result is JSON text, because Airflow 3.3 stores the result of a task that a trigger ends
    as text. `timeout`, `soft_fail` and the other parameters are those of `BaseSensorOperator`.

    :param queue_name: the queue to wait for.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    :param poll_interval: seconds between looks when no notification arrives.
    :param deferrable: False polls in a worker every `poke_interval`, for installations without a triggerer.
    """

    template_fields: Sequence[str] = ("queue_name", "pgqueue_conn_id")
    ui_color = "#dce9f5"

    def __init__(
        self,
        *,
        queue_name: str,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        poll_interval: float = 30.0,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.pgqueue_conn_id = pgqueue_conn_id
        self.poll_interval = poll_interval
        self.deferrable = deferrable

    @abstractmethod
    def _trigger(self) -> DoorbellTrigger:
        """Return the trigger that waits in the triggerer."""

    def execute(self, context: Context) -> Any:
        """Return the doorbell as JSON text if there is work, else wait for it."""
        if not self.deferrable:
            return super().execute(context)
        if doorbell := self._look():
            self.log.info("queue %s has work: %s", self.queue_name, doorbell)
            return json.dumps(doorbell)
        # The trigger also ends the task: resuming it would take a worker slot only to return a number.
        self.defer(
            trigger=self._trigger(), method_name="execute_complete", timeout=timedelta(seconds=float(self.timeout))
        )

    def execute_complete(self, context: Context, event: Any = None) -> str:
        """Return the doorbell. Called by `dag.test()` only: in a triggerer the trigger ends the task."""
        return json.dumps(self._look())

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        doorbell = self._look()
        return PokeReturnValue(is_done=doorbell is not None, xcom_value=json.dumps(doorbell))

    def _look(self) -> Doorbell | None:
        watch = self._trigger().watch()
        rows = PgQueueHook(self.pgqueue_conn_id).run(watch.ask([watch]))
        return watch.hear([row for row in rows if row.queue_name == self.queue_name], time.monotonic())
