"""What all our sensors have in common: a result that is JSON text in XCom, and an object for the next task."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowSensorTimeout, BaseSensorOperator, PokeReturnValue
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgqueue.core.argument import duration
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.triggers.doorbell import SAFE_TO_RESUME

if TYPE_CHECKING:
    from airflow.sdk import Context

SENSOR_TIMEOUT: Final = duration(timedelta(0), timedelta(days=3660))


class SensorResult(PlainXComArg):
    """The object that the JSON text of a sensor means, or with `sensor.output["ready"]` a value of it."""

    part: str | None = None

    def __getitem__(self, item: str) -> SensorResult:
        """Return a reference to one value of the object."""
        found = SensorResult(self.operator, self.key)
        found.part = item
        return found

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Return the object, or the value; None for a sensor that had no result."""
        text = super().resolve(context)
        found = json.loads(text) if isinstance(text, str) else text
        return found[self.part] if self.part is not None and isinstance(found, dict) else found


class ObjectSensor(QueueTask, BaseSensorOperator):
    """A sensor that looks first, then waits in the triggerer; `.output` is an object, while XCom has its JSON text.

    With `deferrable=False` it looks in a worker, every `poke_interval`.
    """

    deferrable: bool

    @property
    def output(self) -> XComArg:
        """The result, for the arguments of another task."""
        return SensorResult(self)

    @abstractmethod
    def _look(self) -> Any:
        """Return what the sensor waits for, or None if it is not there."""

    @abstractmethod
    def _trigger(self, **how: Any) -> BaseTrigger:
        """Return the trigger that waits in the triggerer."""

    def execute(self, context: Context) -> Any:
        """Return what the sensor waits for if it is there, else wait for it."""
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:
                raise AirflowSensorTimeout(self._waited_for()) from error
        if (found := self._look()) is not None:
            self.log.info("nothing to wait for: %s", found)
            return self._result(found)
        trigger = self._waiting_trigger(ring_after=SAFE_TO_RESUME)
        timeout = timedelta(seconds=float(self.timeout))
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._look()
        return PokeReturnValue(is_done=found is not None, xcom_value=self._result(found))

    def _result(self, found: Any) -> Any:
        """Return what goes into XCom."""
        return json.dumps(found)

    def _waiting_trigger(self, ring_after: float = 0.0) -> BaseTrigger:
        """Return the trigger; if the task resumes in a worker, that is after so many seconds at the earliest."""
        if self._ends_in_worker:
            return self._trigger(end_task=False, ring_after=ring_after)
        # The trigger also ends the task: resuming it would take a worker slot only to return a number.
        return self._trigger(end_task=True, with_result=bool(self.do_xcom_push))

    @property
    def _ends_in_worker(self) -> bool:
        """Whether something has to happen at the end that a triggerer does not do."""
        return bool(self.outlets or self.on_success_callback or self._post_execute_hook)
