"""Publishes dead messages again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, duration, optional, queue_name, results, text, truth, whole
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook, name_of
from airflow_provider_pgqueue.task import QueueTask

if TYPE_CHECKING:
    from airflow.sdk import Context

_FEW: Final = 100


class PgQueueRequeueOperator(QueueTask):
    """Publishes dead messages again, unchanged and under new ids, in one transaction.

    The result is `{"queue_name", "requeued", "dry_run"}`; also `new_ids` by the ids of the dead messages if there are
    at most a hundred.

    :param queue_name: the queue of the dead messages, to which they return; None takes all queues.
    :param results: which dead messages; by default `failed` and `lock_expired` ones, because rejected ones would only
        be rejected again.
    :param fingerprint: only those of one cause, as `verbs.dead_causes` names it.
    :param max_messages: the most messages to requeue, oldest first.
    :param max_requeues: leave messages that were requeued this many times before.
    :param delay: make them ready only after this time.
    :param dry_run: only count what would be requeued.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    template_fields: Sequence[str] = ("queue_name", "results", "fingerprint", "pgqueue_conn_id")
    ui_color = "#f5ecdc"
    rules: ClassVar[Mapping[str, Rule]] = {
        "queue_name": optional(queue_name),
        "results": optional(results),
        "fingerprint": optional(text),
        "max_messages": whole(1, 2**31 - 1),
        "max_requeues": optional(whole(0, 32_767)),
        "delay": duration(timedelta(0), timedelta(days=366)),
        "dry_run": truth,
        "pgqueue_conn_id": text,
    }
    attributes: ClassVar[Mapping[str, str]] = {"dry_run": "is_dry_run"}

    def __init__(
        self,
        *,
        queue_name: str | None,
        results: Sequence[str] | None = None,
        fingerprint: str | None = None,
        max_messages: int = 1000,
        max_requeues: int | None = None,
        delay: timedelta = timedelta(0),
        dry_run: bool = False,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.results = results
        self.fingerprint = fingerprint
        self.max_messages = max_messages
        self.max_requeues = max_requeues
        self.delay = delay
        self.is_dry_run = dry_run
        self.pgqueue_conn_id = pgqueue_conn_id
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Requeue, and return how many messages were."""
        self.check_rendered()
        statement = verbs.requeue_dead(
            self.queue_name,
            results=self.results,
            fingerprint=self.fingerprint,
            max_messages=self.max_messages,
            max_requeues=self.max_requeues,
            delay=self.delay,
            remedied_by=name_of(context)[:600],  # at most what PostgreSQL takes
        )
        hook = PgQueueHook(self.pgqueue_conn_id)
        with hook.connect() as conn, conn.transaction(force_rollback=self.is_dry_run):
            requeued = hook.run(statement, conn=conn)
        verb = "would requeue" if self.is_dry_run else "requeued"
        self.log.info("%s %s of %s", verb, quantity(len(requeued), "dead message"), self.queue_name or "all queues")
        summary: dict[str, Any] = {"queue_name": self.queue_name, "requeued": len(requeued), "dry_run": self.is_dry_run}
        if len(requeued) <= _FEW and not self.is_dry_run:
            summary["new_ids"] = {str(one.id): one.new_id for one in requeued}
        return summary
