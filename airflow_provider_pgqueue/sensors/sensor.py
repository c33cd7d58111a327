"""The bases of the sensors: the result is JSON text in XCom and an object for the next task."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowSensorTimeout, BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg
from airflow.triggers.base import BaseTrigger, StartTriggerArgs

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, Rule, check, duration, queue_name, truth
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import AT_LEAST_ONE, QueueTask
from airflow_provider_pgqueue.triggers.message import MESSAGE_RULES
from airflow_provider_pgqueue.triggers.notification import SAFE_TO_RESUME, NotificationTrigger
from airflow_provider_pgqueue.triggers.watch import Notification

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
    def _poll(self) -> Any:
        """Return the result of the sensor, or None if there is no work yet."""

    @abstractmethod
    def _trigger(self, **how: Any) -> BaseTrigger:
        """Return the trigger that waits in the triggerer."""

    def execute(self, context: Context) -> Any:
        """Return the result if there is work already, else wait for it."""
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:
                raise AirflowSensorTimeout(self._waited_for()) from error
        if (found := self._poll()) is not None:
            self.log.info("nothing to wait for: %s", found)
            return self._result(found)
        trigger = self._waiting_trigger(notify_after=SAFE_TO_RESUME)
        timeout = timedelta(seconds=float(self.timeout))
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        found = self._poll()
        return PokeReturnValue(is_done=found is not None, xcom_value=self._result(found))

    def _result(self, found: Any) -> Any:
        """Return the value for XCom."""
        return json.dumps(found)

    def _waiting_trigger(self, notify_after: float = 0.0) -> BaseTrigger:
        """Return the trigger. A task that resumes in a worker does so after so many seconds at the earliest."""
        if self._ends_in_worker:
            return self._trigger(end_task=False, notify_after=notify_after)
        # The trigger also ends the task: resuming it would take a worker slot only to return a number.
        return self._trigger(end_task=True, with_result=bool(self.do_xcom_push))

    @property
    def _ends_in_worker(self) -> bool:
        """Whether something has to happen at the end that a triggerer does not do."""
        return bool(self.outlets or self.on_success_callback or self._post_execute_hook)


class NotificationSensor(ObjectSensor):
    """Waits for work in a queue, in the triggerer from beginning to end: it needs no worker slot at all.

    It looks first, and succeeds at once if there is work. Its result is the notification: numbers and topics, but no
    messages; the next task leases those. `sensor.output` is an object for the next task, and `sensor.output["ready"]` a
    value of it. What `xcom_pull` returns is JSON text, for `json.loads`, because a trigger that ends a task can store
    only text. `timeout`, `soft_fail` and the other
    parameters are those of `BaseSensorOperator`.

    The sensor begins in a worker before Airflow 3.3, in a mapped task, if an argument comes from a template or another
    task, and with an `on_execute_callback` or a `pre_execute`.

    A sensor with `outlets`, an `on_success_callback` or a `post_execute` ends in a worker, because a triggerer ignores
    these. If it also began in one, it waits for at least eight seconds, and has one retry by default, because Airflow
    sometimes fails a task that resumes sooner.

    If the queue does not exist or is paused, the sensor logs a warning and waits for it.

    :param queue_name: the queue to wait for.
    :param poll_interval: the time between two polls when no notification arrives.
    :param deferrable: False looks in a worker, for installations without a triggerer, every `poke_interval`, which by
        default is `poll_interval`.
    :param start_from_trigger: False begins in a worker in any case, for example because a pool limits how many begin;
        so does the default where `[triggerer] queues_enabled` is set, because only a worker knows the queue of a task.
    """

    trigger_class: ClassVar[type[NotificationTrigger]]
    template_fields: Sequence[str] = ("queue_name", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": queue_name,
        "poll_interval": POLL_INTERVAL,
        "deferrable": truth,
        "start_from_trigger": truth,
    }

    def __init__(
        self,
        *,
        queue_name: str,
        poll_interval: Duration = 30.0,
        deferrable: bool = True,
        start_from_trigger: bool | None = None,
        poke_interval: Duration | None = None,
        max_wait: Duration | None = None,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Any,
    ) -> None:
        # Before the base class uses them.
        check({**kwargs, "max_wait": max_wait}, {"timeout": SENSOR_TIMEOUT, "max_wait": MESSAGE_RULES["max_wait"]})
        if poke_interval is None:
            poke_interval = poll_interval if POLL_INTERVAL(poll_interval) is None else 0.0
        super().__init__(poke_interval=poke_interval, max_wait=max_wait, retries=retries, **kwargs)
        self.queue_name = queue_name
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        if start_from_trigger is None:
            # The scheduler, unlike a worker, hands a task over without the name of its queue.
            start_from_trigger = not conf.getboolean("triggerer", "queues_enabled", fallback=False)
        self.start_from_trigger = start_from_trigger

    def check_written(self) -> None:
        """Check the arguments as they were written, and let the scheduler hand the task to the triggerer."""
        super().check_written()
        at_start = (self._made_later, self.on_execute_callback, self._pre_execute_hook)
        self.start_from_trigger = self.start_from_trigger and self.deferrable and not any(at_start)
        if self.start_from_trigger:
            classpath, arguments = self._waiting_trigger().serialize()
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls=classpath,
                trigger_kwargs=arguments,
                next_method="execute_complete",
                timeout=timedelta(seconds=float(self.timeout)),
            )

    def _trigger(self, **how: Any) -> NotificationTrigger:
        """Return the trigger that waits in the triggerer; its arguments have the same names as those of the sensor."""
        given = {name: value for name, value in self._given().items() if name in self.trigger_class.rules}
        return self.trigger_class(**given, for_task=True, **how)

    def execute(self, context: Context) -> Any:
        """Return the notification as JSON text if there is work, else wait for it."""
        for closed in PgQueueHook(self.pgqueue_conn_id).run(verbs.closed_queues([self.queue_name])):
            self.log.warning("%s", closed)
        return super().execute(context)

    def execute_complete(self, context: Context, event: Notification) -> Any:
        """Return the notification that the trigger fired."""
        return json.dumps(event)

    def _poll(self) -> Any:
        watch = self._trigger().watch()
        rows = PgQueueHook(self.pgqueue_conn_id).run(watch.ask([watch]))
        return watch.receive([row for row in rows if row.queue_name == self.queue_name], time.monotonic())
