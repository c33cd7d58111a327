"""Handing messages over to DAG runs, which finish them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Literal

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import Dispatch, Message
from airflow_provider_pgqueue.core.statement import Statement, column, list_of, messages_of, one


def dispatch_messages(
    queue_name: str,
    dag_id: str,
    *,
    max_open: int = 16,
    batch_size: int = 1,
    group_by: Literal["topic", "reference"] | None = None,
    on_failure: Literal["retry", "fail"] = "retry",
    lease_for: Duration = timedelta(hours=6),
    dispatched_by: str | None = None,
) -> Statement[list[Dispatch]]:
    """Lease messages for runs of a DAG, record a dispatch for each run, and return those; the caller starts the runs.

    At most `max_open` dispatches of a queue and DAG are open at once, from all dispatchers. Their leases last
    `lease_for` from the last time that anybody saw the run alive. `on_failure` says what a failed run does to its
    messages: `retry` after the back-off until their last attempt, or `fail`. Raises QueuePaused for a paused queue.
    """
    return Statement("dispatch_messages", locals(), list_of(Dispatch))


def open_dispatches(queue_name: str | None = None, dag_id: str | None = None) -> Statement[list[Dispatch]]:
    """Return the dispatches whose run has not ended as far as the queue knows, oldest first."""
    return Statement("open_dispatches", locals(), list_of(Dispatch))


def start_dispatch(dispatch_id: int) -> Statement[bool]:
    """Record that the run of a dispatch exists, and return whether that is news."""
    return Statement("start_dispatch", locals(), one)


def extend_dispatches(dispatch_ids: Collection[int]) -> Statement[list[int]]:
    """Renew the leases of runs that are under way or about to be started, and return the dispatches that hold any.

    It does not record that the runs exist, as `start_dispatch` does.
    """
    return Statement("extend_dispatches", locals(), column)


def overdue_dispatches(dispatch_ids: Collection[int]) -> Statement[list[int]]:
    """Return those of the dispatches that were not renewed for as long as their lease lasts."""
    return Statement("overdue_dispatches", locals(), column)


def record_task_failure(dag_id: str, run_id: str, task_id: str, failure: Mapping[str, Any]) -> Statement[bool]:
    """Record the error with which a task of a run failed for good, for the messages that die of it.

    `failure` is as `describe` of `core.outcome` returns it. False if the run has no open dispatch.
    """
    return Statement("record_task_failure", locals(), one)


def end_dispatch(
    dag_id: str,
    run_id: str,
    result: Literal["success", "failed", "lost", "refused"],
    *,
    details: str | None = None,
    failed_tasks: Collection[str] | None = None,
) -> Statement[int | None]:
    """End the dispatch of a run and return how many messages that finished or gave back.

    0 if it had ended before, None if the run has no dispatch. `lost` is a run that was deleted, `refused` one that
    Airflow did not make. The success of a run that was cleared finishes what still waits, and dismisses what is dead.
    What dies of a failed run has one cause with all that died of the same `failed_tasks` of the DAG and class of error;
    without `details` it says which these are.
    """
    return Statement("end_dispatch", locals(), one)


def dispatched_messages(dag_id: str, run_id: str) -> Statement[list[Message]]:
    """Return the messages of a run; what is finished comes from the archive, without a token.

    After the run was cleared, this leases again what waits for its next attempt. Raises DispatchNotFound if the run has
    no dispatch, or if it has none of its messages any more, because another run has or has finished them.
    """
    return Statement("dispatched_messages", locals(), messages_of(Message))
