"""Starts remediation runs for dead messages, one for each cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, duration, optional, results, whole
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import Dispatch
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.tasks.dispatch import RunStarter
from airflow_provider_pgqueue.tasks.task import AT_LEAST_ONE, CommonArguments
from airflow_provider_pgqueue.tasks.telemetry import name_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueueDispatchDeadOperator(RunStarter):
    """Starts a remediation run for each cause of the dead messages of a queue.

    The run gets the dead messages of one fingerprint: its `conf` has `{"pgqueue": {"queue_name", "fingerprint",
    "ids"}}`, and no bodies. A `PgQueueRequeueOperator` in it takes `ids="{{ dag_run.conf['pgqueue']['ids'] }}"`. The
    id of the run is made of queue, fingerprint and the number of the dispatch, which is recorded before the run starts:
    whatever dies, no message has two runs. A cause has one run at a time; messages that die of it meanwhile go to the
    next run.

    If a run fails or is deleted, another one gets its messages that have no remedy yet, after `retry_after`, which
    doubles each time up to a day. Messages that a successful run left dead stay dead, and get no other run.

    Schedule the DAG of this operator by an asset watcher with a `PgQueueDeadMessageTrigger`, or by time: each run also
    notices how earlier ones ended. The result has numbers of dispatches: how many were `started`, and how many earlier
    ones were found to have ended as `success`, `failed` or `lost`.

    :param queue_name: the queue whose dead messages are handed over.
    :param results: only messages with these results: `failed`, `rejected`, `lock_expired`, `expired`; None takes all.
    :param max_requeues: leave out messages that were requeued this many times before, and died each time.
    :param retry_after: the pause after a run that failed; at most a day.
    """

    template_fields: Sequence[str] = ("queue_name", "trigger_dag_id", "results", "conf", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **RunStarter.rules,
        "results": optional(results),
        "max_requeues": optional(whole(0, 32_767)),
        "retry_after": duration(timedelta(0), timedelta(days=1)),
    }

    def __init__(
        self,
        *,
        queue_name: str,
        trigger_dag_id: str,
        results: Sequence[str] | None = None,
        max_requeues: int | None = 3,
        batch_size: int = 1000,
        max_open: int = 16,
        retry_after: Duration = timedelta(minutes=1),
        conf: Mapping[str, Any] | None = None,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Unpack[CommonArguments],
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.queue_name = queue_name
        self.trigger_dag_id = trigger_dag_id
        self.results = results
        self.max_requeues = max_requeues
        self.batch_size = batch_size
        self.max_open = max_open
        self.retry_after = retry_after
        self.conf = conf
        self.check_written()

    def execute(self, context: Context) -> dict[str, int]:
        """Reconcile, start a run for each cause that may have one, and return how many."""
        return self._hand_over(context)

    def _opening(self, context: Context) -> Statement[list[Dispatch]]:
        return verbs.dispatch_dead(
            self.queue_name,
            self.trigger_dag_id,
            max_open=self.max_open,
            batch_size=self.batch_size,
            results=self.results,
            max_requeues=self.max_requeues,
            retry_after=self.retry_after,
            dispatched_by=name_of(context),
        )
