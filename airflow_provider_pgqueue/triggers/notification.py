"""The base of the triggers that wait for a queue: they fire once for a task, and again and again for a watcher."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping
from contextlib import aclosing
from dataclasses import fields
from datetime import timedelta
from typing import Any, ClassVar, Final, Required, TypedDict

from airflow.triggers.base import BaseEventTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgqueue.core.argument import (
    POLL_INTERVAL,
    Rule,
    check,
    check_names,
    duration,
    queue_name,
    text,
    truth,
)
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.core.errors import InvalidArgument, SchemaError
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids
from airflow_provider_pgqueue.triggers.hub import notification_stream
from airflow_provider_pgqueue.triggers.watch import Notification, Watch

log = logging.getLogger(__name__)
_SHORTEST: Final = 5.0  # seconds that a watcher waits after a failure; doubles up to
_LONGEST: Final = 300.0
NOTIFY_AFTER: Final = duration(timedelta(0), timedelta(days=1))
# Airflow sometimes fails a task that resumes within about six seconds after it deferred: until it has recorded that
# the worker process ended, it takes that end for the end of the task.
SAFE_TO_RESUME: Final = 8.0


class InvalidTriggerArgument(InvalidArgument, TypeError):
    """An argument of a trigger is out of range.

    A TypeError too: any other error in the `__init__` of a trigger ends the triggerer, with all its triggers.
    """


class TriggerArguments(TypedDict, total=False):
    """The arguments of a `NotificationTrigger`."""

    queue_name: Required[str]
    pgqueue_conn_id: str
    poll_interval: Duration
    notify_every: Duration
    end_task: bool
    with_result: bool
    notify_after: Duration
    for_task: bool


class NotificationTrigger(BaseEventTrigger):
    """Fires notifications: events with numbers and topics that say that a queue has work. It never leases.

    For an asset watcher it never ends: it fires again and again, and after a failure it logs the error and tries again
    after growing pauses. For a deferred task it fires once, and the task resumes with the notification; with `end_task`
    the task ends in the triggerer, with the notification as its result.

    :param queue_name: the queue to wait for.
    :param pgqueue_conn_id: the Airflow connection. All triggers of a triggerer share one session per connection.
    :param poll_interval: the time between two polls when no notification arrives.
    :param notify_every: the time after which a watcher notifies again of work that is still there. While nothing at all
        changes, it doubles with each notification, up to five minutes. Each notification starts a run, so give more
        than a run usually waits in the executor, and `max_active_runs=1` to the DAG.
    :param end_task: end the waiting task in the triggerer instead of resuming it in a worker; a watcher ignores it.
    :param with_result: False ends the task without a result.
    :param notify_after: how long a waiting task waits in any case.
    :param for_task: True if a task waits. A triggerer knows that by itself; `dag.test()` does not.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "queue_name": queue_name,
        "pgqueue_conn_id": text,
        "poll_interval": POLL_INTERVAL,
        "notify_every": POLL_INTERVAL,
        "end_task": truth,
        "with_result": truth,
        "notify_after": NOTIFY_AFTER,
        "for_task": truth,
    }

    watch_class: ClassVar[type[Watch]]
    # Airflow reads this when a task defers, whose trigger then runs in a triggerer that serves the task's own queue.
    supports_triggerer_queue = True

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        pgqueue_conn_id: str = "pgqueue_default",
        poll_interval: Duration = 30.0,
        notify_every: Duration = 10.0,
        end_task: bool = False,
        with_result: bool = True,
        notify_after: Duration = 0.0,
        for_task: bool = False,
        **unknown: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # An error of Python would name this base class, which no DAG names.
        kind = type(self).__name__
        check_names(kind, unknown, self.rules, InvalidTriggerArgument)
        if queue_name is None:
            raise InvalidTriggerArgument(f"{kind} has no queue_name", "Give the name of the queue to wait for.")
        self.queue_name = queue_name
        self.pgqueue_conn_id = pgqueue_conn_id
        self.poll_interval = seconds(poll_interval)
        self.notify_every = seconds(notify_every)
        self.end_task = end_task
        self.with_result = with_result
        self.notify_after = seconds(notify_after)
        self.for_task = for_task

    def check_arguments(self) -> None:
        """Raise an InvalidTriggerArgument for a bad argument, before it can disturb other waiters."""
        check_connection_ids({"pgqueue_conn_id": self.pgqueue_conn_id}, InvalidTriggerArgument)
        check(vars(self), self.rules, InvalidTriggerArgument)

    def watch(self) -> Watch:
        """Return a new watch of the queue; its arguments have the same names as those of the trigger."""
        names = [field.name for field in fields(self.watch_class) if field.init]
        return self.watch_class(**{name: getattr(self, name) for name in names})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and exactly the arguments of `__init__`, each of which has a rule."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in self.rules}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once for a deferred task, without end for a watcher."""
        for_task = self._is_for_task
        if for_task and self.notify_after:
            await asyncio.sleep(self.notify_after)
        stream = notification_stream(self.pgqueue_conn_id, self.watch()) if for_task else self._notify_forever()
        # Closed here, because Python may collect it after the end of the event loop that the connection needs.
        async with aclosing(stream) as notifications:
            async for notification in notifications:
                yield self._end(notification) if self._can_end_task else TriggerEvent(notification)
                if for_task:
                    return

    def _end(self, notification: Notification) -> TaskSuccessEvent:
        return TaskSuccessEvent(xcoms={"return_value": notification} if self.with_result else None)

    @property
    def _is_for_task(self) -> bool:
        # The triggerer sets the task instance before it starts the trigger of a deferred task.
        return self.for_task or self.task_instance is not None

    @property
    def _can_end_task(self) -> bool:
        # dag.test() resumes the task with any event, also with one that ends the task.
        return self.end_task and self.task_instance is not None

    def shared_stream_key(self) -> Hashable | None:
        """Return the same key for equal watchers, which then share one stream; None for a task, which waits alone."""
        if self._is_for_task:
            return None
        classpath, arguments = self.serialize()
        return classpath, json.dumps(arguments, sort_keys=True)

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Notification]:
        """Return the stream of notifications for all the watchers that have these arguments."""
        return cls(**kwargs)._notify_forever()

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Notification]) -> AsyncIterator[TriggerEvent]:
        """Fire for each notification; all watchers of a stream have equal arguments, so none is filtered out."""
        async for notification in shared_stream:
            yield TriggerEvent(notification)

    async def _notify_forever(self) -> AsyncGenerator[Notification]:
        pause, logged = _SHORTEST, ""
        while True:
            try:
                async with aclosing(notification_stream(self.pgqueue_conn_id, self.watch())) as notifications:
                    async for notification in notifications:
                        pause, logged = _SHORTEST, ""
                        yield notification
            except Exception as error:
                # A watcher that raises is started again every second, forever.
                if str(error) != logged:
                    logged = str(error)
                    log.exception("cannot watch queue %s; next try in about %.0f s", self.queue_name, pause)
                if isinstance(error, SchemaError):
                    # A watcher that started before the set-up should continue soon after it.
                    pause = _SHORTEST / 2
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST)
