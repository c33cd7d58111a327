"""What all our sensors have in common: a result that is JSON text in XCom, and an object for the next task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.providers.common.compat.sdk import BaseSensorOperator
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg

from airflow_provider_pgqueue.core.argument import duration
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.tasks.task import CommonArguments

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


class SensorArguments(CommonArguments, total=False):
    """The arguments of Airflow's `BaseSensorOperator`, but for those that a class of ours has itself."""

    timeout: Duration | None
    soft_fail: bool
    mode: str
    exponential_backoff: bool
    silent_fail: bool
    never_fail: bool


class ObjectSensor(BaseSensorOperator):
    """A sensor whose `.output` is an object, while XCom has its JSON text."""

    @property
    def output(self) -> XComArg:
        """The result, for the arguments of another task."""
        return SensorResult(self)

    @property
    def _patience(self) -> timedelta:
        return timedelta(seconds=float(self.timeout))

    def _needs_worker(self) -> bool:
        """Return whether something has to happen at the end that a triggerer does not do."""
        return bool(self.outlets or self.on_success_callback or self._post_execute_hook)
