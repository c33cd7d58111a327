"""Messages that DAG runs finish: the operators, their trigger, and the listener for the ends of runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgqueue.core.message import Message


def get_messages(
    context: Context, *, ids: Iterable[int] | None = None, pgqueue_conn_id: str = "pgqueue_default"
) -> list[Message]:
    """Return the messages of the DAG run that a `PgQueueDispatchOperator` started, in any of its tasks.

    The leases belong to the run: nothing has to be archived or renewed. When the run has succeeded, its messages are
    archived; a task that is repeated gets the same messages again. In a run that was cleared after its messages were
    finished, they come from the archive. Messages that another run has or has finished, and cancelled messages, are
    left out.

    :param context: that of the task.
    :param ids: only these, for example in a mapped task: `context["dag_run"].conf["pgqueue"]["ids"]` has all.
    :param pgqueue_conn_id: the connection of the dispatcher. Never take it from a `conf`, which whoever triggers a run
        writes.

    Raises DispatchNotFound in a run that no dispatcher started, and in a run that has none of its messages any more:
    the error then names what became of one of them.
    """
    # Imported here because the listener of this package is loaded in every process of Airflow.
    from airflow_provider_pgqueue.core import verbs
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    dag_run = context["dag_run"]
    messages = PgQueueHook(pgqueue_conn_id).run(verbs.dispatched_messages(dag_run.dag_id, dag_run.run_id))
    wanted = None if ids is None else set(ids)
    return [message for message in messages if wanted is None or message.id in wanted]
