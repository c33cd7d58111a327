"""Hands messages over to DAG runs, and learns what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_pgqueue.core import argument, verbs
from airflow_provider_pgqueue.core.argument import Rule, duration, json_object, one_of, optional, text, whole
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.dispatch.dispatch import CONF, end_abandoned, hand_over, reconcile
from airflow_provider_pgqueue.dispatch.trigger import PgQueueDispatchTrigger
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import QueueTask, WaitingTask
from airflow_provider_pgqueue.telemetry.telemetry import name_of

if TYPE_CHECKING:
    from airflow.sdk import Context


def _more_conf(value: Any) -> str | None:
    if isinstance(value, Mapping) and CONF in value:
        return f"The runs get their messages under {CONF!r}: give your values another key."
    return json_object(value)


class PgQueueDispatchOperator(WaitingTask):
    """Starts a DAG run for each message, or batch of messages, which is finished when its run is.

    The tasks of the run get the messages with `get_messages(context)` of `airflow_provider_pgqueue.dispatch`; the
    run's `conf` has their ids, and no bodies. The messages stay leased while the run is queued or running, even for
    hours. If the run succeeds, they are archived as success. If it fails, they are delivered to another run after the
    back-off of the queue, or archived as failed after their last attempt, with `on_failure="fail"` after the first. If
    it is deleted, they are delivered again, and the attempt counts.

    A run that is cleared finishes its messages that still wait, and dismisses those that had died. If by then other
    runs have all of them, or have finished them, `get_messages` in the cleared run fails.

    Each dispatch is recorded before its run starts: whatever dies, no message is lost, and none has two runs for one
    attempt. This operator, its trigger while it waits, `PgQueueReconcileOperator`, and a listener in the scheduler
    notice the ends of runs. If none of them sees a run alive for `lease_for`, its messages are delivered again.

    The result has numbers of dispatches: how many were `started`, and how many earlier ones were found to have ended as
    `success`, `failed` or `lost`.

    A run of its own DAG would only dispatch, and its success would archive the messages. The arguments for queue,
    choice of messages and waiting are those of `WaitingTask`.

    :param trigger_dag_id: the DAG whose runs get the messages, another one than that of this task. While it is paused
        it gets none.
    :param batch_size: the largest number of messages for one run.
    :param max_open: the largest number of runs under way for this queue and DAG, whoever started them.
    :param conf: more `conf` for the runs, under other keys than `pgqueue`.
    :param group_by: give a run only messages with the same `topic` or `reference`.
    :param on_failure: what a failed run does to its messages: `retry` or `fail`.
    :param lease_for: how long the messages stay leased after somebody last saw the run alive; at most 12 hours.
    """

    template_fields: Sequence[str] = ("queue_name", "trigger_dag_id", "conf", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **WaitingTask.rules,
        "trigger_dag_id": text,
        "batch_size": whole(1, 10_000),
        "max_open": whole(1, 10_000),
        "conf": optional(_more_conf),
        "group_by": optional(one_of("topic", "reference")),
        "on_failure": one_of("retry", "fail"),
        "lease_for": duration(timedelta(minutes=1), timedelta(hours=12)),
    }
    waits_for = "an end of runs, or messages of"

    def __init__(
        self,
        *,
        trigger_dag_id: str,
        batch_size: int = 1,
        group_by: Literal["topic", "reference"] | None = None,
        max_open: int = 16,
        on_failure: Literal["retry", "fail"] = "retry",
        conf: Mapping[str, Any] | None = None,
        lease_for: Duration = timedelta(hours=6),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.trigger_dag_id = trigger_dag_id
        self.batch_size = batch_size
        self.group_by = group_by
        self.max_open = max_open
        self.on_failure = on_failure
        self.conf = conf
        self.lease_for = lease_for
        self.check_written()

    def check_written(self) -> None:
        """Check the arguments as they were written; with the DAG of the task, if it is known yet."""
        super().check_written()
        if self.batch_size == 1:
            self._check_idle("batch_size", group_by=None)
        if self.has_dag():  # type: ignore[no-untyped-call]
            self._check_target(self.dag.dag_id)

    def pre_execute(self, context: Any) -> None:
        """Check what templates made, and the DAG that the task runs in, before anything is leased."""
        super().pre_execute(context)
        self._check_target(context["ti"].dag_id)

    def _check_target(self, own: str) -> None:
        if self.trigger_dag_id == own:
            raise InvalidArgument(
                f"trigger_dag_id is {own!r}, the DAG of this task",
                "Give the id of another DAG, whose tasks handle the messages.",
            )

    def execute(self, context: Context) -> dict[str, int]:
        """Start runs for ready messages, up to `max_open`; with `wait_for_messages` wait if there are none."""
        return self.execute_complete(context)

    def execute_complete(self, context: Context, event: Any = None, fruitless: int = 0) -> dict[str, int]:
        """Start runs for what the trigger saw; if nothing is left, wait again, longer each time."""
        opening = verbs.dispatch_messages(
            self.queue_name,
            self.trigger_dag_id,
            max_open=self.max_open,
            batch_size=self.batch_size,
            group_by=self.group_by,
            on_failure=self.on_failure,
            lease_for=self.lease_for,
            dispatched_by=name_of(context),
        )
        done = dict(hand_over(self.pgqueue_conn_id, self.queue_name, self.trigger_dag_id, opening, self.conf))
        if not done.get("started") and self.wait_for_messages:
            self._wait(fruitless)
        return done

    def _trigger(self, notify_after: float) -> PgQueueDispatchTrigger:
        return PgQueueDispatchTrigger(
            queue_name=self.queue_name,
            dag_id=self.trigger_dag_id,
            max_open=self.max_open,
            pgqueue_conn_id=self.pgqueue_conn_id,
            poll_interval=self.poll_interval,
            notify_after=notify_after,
        )


class PgQueueReconcileOperator(QueueTask):
    """Compares the open dispatches with the states of their DAG runs, and ends or renews them.

    Dispatchers do this too. Schedule it, for example every ten minutes, where runs take longer than the time between
    two dispatchers, or where no dispatcher waits. The next dispatcher starts runs that were recorded and never started.
    If no dispatcher has their `trigger_dag_id` any more, this operator ends the dispatches to it: as `refused` if
    Airflow does not know that DAG, and as `lost` when their lease is over.

    The result has numbers of dispatches: how many ended as `success`, `failed`, `lost` or `refused`, and how many are
    `unstarted`.

    :param queue_name: only dispatches of this queue.
    :param trigger_dag_id: only dispatches to this DAG.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    template_fields: Sequence[str] = ("queue_name", "trigger_dag_id", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": optional(argument.queue_name),
        "trigger_dag_id": optional(text),
    }

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        trigger_dag_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.trigger_dag_id = trigger_dag_id
        self.check_written()

    def execute(self, context: Context) -> dict[str, int]:
        """Reconcile once."""
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn:
            ended, unstarted = reconcile(conn, self.queue_name, self.trigger_dag_id)
            abandoned, unstarted = end_abandoned(conn, unstarted)
            ended += abandoned
        found = dict(ended) | ({"unstarted": len(unstarted)} if unstarted else {})
        self.log.info("dispatches that ended: %s", found)
        return found
