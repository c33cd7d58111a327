"""Waits for the outcome of a message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    XComArg,
)

from airflow_provider_pgqueue.core.argument import Rule, check
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.sensors.result import SENSOR_TIMEOUT, ObjectSensor, SensorArguments
from airflow_provider_pgqueue.tasks.completion import COMPLETION_RULES, AwaitsMessages
from airflow_provider_pgqueue.tasks.task import AT_LEAST_ONE

if TYPE_CHECKING:
    from airflow.sdk import Context


def _id_of(value: Any) -> int:
    """Return an id; 0 for a value that is not one."""
    if isinstance(value, Mapping):
        # A later try of the publishing task found the message of the first.
        value = value.get("first_id") or value.get("duplicate_of")
    # Digits, because a template makes text.
    good = type(value) is int or (isinstance(value, str) and value.isdecimal() and value.isascii())
    return int(value) if good else 0


def _message_id(value: Any) -> str | None:
    if isinstance(value, Mapping) and ((value.get("published") or 0) > 1 or value.get("several")):
        return (
            "It is the result of a task that published several messages, and the sensor would wait for the first only. "
            "Use PgQueueRequestOperator, or map the sensor over the ids of the result."
        )
    good = 0 < _id_of(value) < 2**63
    return None if good else "Give the id of a message, or the result of a task that published one."


class PgQueueOutcomeSensor(AwaitsMessages, ObjectSensor):
    """Waits until a message is finished, whoever published it, and returns its outcome.

    A success ends the sensor with `{"message_id", "queue_name", "result", "attempts"}`; anything else
    fails it, without a retry, with the id, the result and the class of the error. It waits five seconds in the worker,
    then in the triggerer, which also ends it. A message that will be delivered again is not finished. The login needs
    the role `messages_observer`.

    A success rings for the sensor if the message was published with the header `awaited`, as
    `PgQueueRequestOperator` does; otherwise the sensor polls.

    `timeout`, `soft_fail` and the other parameters are those of `BaseSensorOperator`.

    :param message_id: the id of the message, or the result of a `PgQueuePublishOperator` that published one, such as
        `publish.output`.
    """

    template_fields: Sequence[str] = ("message_id", "pgqueue_conn_id")
    _too_late = AirflowSensorTimeout
    rules: ClassVar[Mapping[str, Rule]] = {**COMPLETION_RULES, "message_id": _message_id}

    def __init__(
        self,
        *,
        message_id: int | str | Mapping[str, Any] | XComArg,
        follow_requeues: bool = False,
        with_output: bool = False,
        poll_interval: Duration = 10.0,
        deferrable: bool = True,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        # Before the base class uses it.
        check(kwargs, {"timeout": SENSOR_TIMEOUT})
        super().__init__(retries=retries, **kwargs)
        self.message_id = message_id
        self.follow_requeues = follow_requeues
        self.with_output = with_output
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self.check_written()

    def execute(self, context: Context) -> str:
        """Return the outcome as JSON text if the message is finished, else wait for it."""
        # A triggerer must not hand on an output.
        end_task = not (self.with_output or self._needs_worker())
        try:
            (outcome,) = self._outcomes([_id_of(self.message_id)], self._patience, end_task=end_task)
        except (AirflowFailException, AirflowSensorTimeout, AirflowTaskTimeout) as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return json.dumps(outcome)

    def execute_complete(self, context: Context, event: Any = None, ids: Sequence[int] = ()) -> str:
        """Return the outcome as JSON text."""
        (outcome,) = self._finished(ids)
        return json.dumps(outcome)
