"""Publishes a message from a callback."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseNotifier

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import (
    Rule,
    json_object,
    json_value,
    optional,
    queue_name,
    text,
    topic,
    whole,
)
from airflow_provider_pgqueue.core.client import run_async
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import check_arguments
from airflow_provider_pgqueue.telemetry.telemetry import NAMES, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueueNotifier(BaseNotifier):
    """Publishes a message when a DAG or task calls back, for example `on_failure_callback=PgQueueNotifier(…)`.

    A bad argument is an InvalidArgument where it is written, and one that a template made when it is called back.
    It works in a worker, in the DAG processor, and with `await` in the triggerer, for deadlines. Airflow logs an error
    of a callback and does not change the state of the run.

    :param queue_name: the queue to publish to.
    :param message: the body, any JSON value; its texts are templates. By default an object that says which run, task
        and try it was: `dag_id`, `run_id`, `task_id`, `map_index`, `try_number`, and the `reason` that Airflow gives.
    :param headers: an object kept next to the body.
    :param reference: a text to find the message by; by default DAG, run, task and map index of a task.
    :param topic: words with dots between them that name the kind of message.
    :param priority: from 0 to 9; higher is leased first.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    template_fields: Sequence[str] = ("queue_name", "message", "headers", "reference", "topic", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        "queue_name": queue_name,
        "message": json_value,
        "headers": optional(json_object),
        "reference": optional(text),
        "topic": optional(topic),
        "priority": whole(0, 9),
        "pgqueue_conn_id": text,
    }

    def __init__(
        self,
        *,
        queue_name: str,
        message: Any = None,
        headers: Mapping[str, Any] | None = None,
        reference: str | None = None,
        topic: str | None = None,
        priority: int = 4,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.message = message
        self.headers = headers
        self.reference = reference
        self.topic = topic
        self.priority = priority
        self.pgqueue_conn_id = pgqueue_conn_id
        self._check(written=True)

    def _check(self, *, written: bool = False) -> None:
        """Check the arguments; as they were written, only those that no template makes, but the texts of all."""
        check_arguments(
            {name: getattr(self, name) for name in self.rules}, self.rules, self.template_fields if written else ()
        )

    # Airflow renders templates in place, and calls one notifier for all runs of a file that wait for their callbacks.
    def __call__(self, *args: Any) -> None:
        """Publish the message of one call; the templates stay for the next."""
        super(PgQueueNotifier, copy(self)).__call__(*args)

    def __await__(self) -> Generator[Any, Any, None]:
        """Publish the message of one call; the templates stay for the next."""
        return super(PgQueueNotifier, copy(self)).__await__()

    def notify(self, context: Context) -> None:
        """Publish the message."""
        id_ = PgQueueHook(self.pgqueue_conn_id).run(self._statement(context))
        self.log.info("published message %s to queue %s", int(id_), self.queue_name)

    async def async_notify(self, context: Context) -> None:
        """Publish the message without blocking the event loop."""
        async with await PgQueueHook(self.pgqueue_conn_id).aconnect() as conn:
            id_ = await run_async(conn, self._statement(context))
        self.log.info("published message %s to queue %s", int(id_), self.queue_name)

    def _statement(self, context: Context) -> Statement[int]:
        self._check()
        return verbs.publish(
            self.queue_name,
            _who(context) if self.message is None else self.message,
            headers=self.headers,
            reference=self.reference or (task_of(context) if context.get("ti") else None),
            topic=self.topic,
            priority=self.priority,
        )


def _who(context: Context) -> dict[str, Any]:
    """Return which run and task called back; for a DAG there is no task, and sometimes Airflow tells nothing."""
    one = context.get("ti") or context.get("dag_run")
    known = {name: value for name in NAMES if (value := getattr(one, name, None)) is not None}
    reason = context.get("reason")
    return known | ({"reason": str(reason)} if reason else {})
