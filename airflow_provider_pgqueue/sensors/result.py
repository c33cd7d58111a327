"""The result of a sensor as the next task gets it: a trigger that ends a task can only leave JSON text in XCom."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import BaseSensorOperator
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.tasks.task import CommonArguments


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
