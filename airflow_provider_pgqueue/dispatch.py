"""Messages that DAG runs finish: what their tasks get, and how the queue learns what became of the runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_provider_pgqueue import dag_runs
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import DispatchNotFound
from airflow_provider_pgqueue.core.message import Dispatch, Message
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.telemetry import note_dispatches

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

_CONF: Final = "pgqueue"
"""The key of a run's `conf` under which its messages are named."""


def get_messages(context: Context, *, ids: Iterable[int] | None = None) -> list[Message]:
    """Return the messages of the DAG run that a `PgQueueDispatchOperator` started, in any of its tasks.

    The leases belong to the run: nothing has to be archived or renewed. When the run has succeeded, its messages are
    archived; a task that is repeated gets the same messages again. In a run that was cleared after its messages were
    finished, they come from the archive; so do the dead messages of a run of `PgQueueDispatchDeadOperator`.

    :param ids: only these, for example in a mapped task: `context["dag_run"].conf["pgqueue"]["ids"]` has all.

    Raises DispatchNotFound in a run that no dispatcher started, and in a cleared one if another run, for the next
    attempt, has the messages.
    """
    dag_run = context["dag_run"]
    named = (dag_run.conf or {}).get(_CONF)
    if not isinstance(named, Mapping) or not isinstance(named.get("pgqueue_conn_id"), str):
        raise DispatchNotFound(
            f"run {dag_run.run_id!r} of DAG {dag_run.dag_id!r} was not started by a PgQueueDispatchOperator"
        )
    messages = PgQueueHook(named["pgqueue_conn_id"]).run(verbs.dispatched_messages(dag_run.dag_id, dag_run.run_id))
    wanted = None if ids is None else set(ids)
    return [message for message in messages if wanted is None or message.id in wanted]


def conf_of(dispatch: Dispatch, pgqueue_conn_id: str, conf: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the `conf` of a run: the caller's, and which messages it has. Never a body."""
    named = {"pgqueue_conn_id": pgqueue_conn_id, "queue_name": dispatch.queue_name, "ids": dispatch.ids}
    if dispatch.fingerprint is not None:
        named["fingerprint"] = dispatch.fingerprint
    return {**(conf or {}), _CONF: named}


def hand_over(
    pgqueue_conn_id: str,
    queue_name: str,
    dag_id: str,
    opening: Statement[list[Dispatch]],
    conf: Mapping[str, Any] | None = None,
) -> Counter[str]:
    """Reconcile, start the runs that an earlier dispatcher recorded and did not start, and those of `opening`.

    `opening` is run until it opens no more. Returns how many were started, and how many earlier ones ended how. A
    paused DAG gets none.
    """
    with PgQueueHook(pgqueue_conn_id).connect() as conn:
        done, unstarted = reconcile(conn, queue_name, dag_id)
        if dag_runs.is_paused(dag_id):
            log.warning("DAG %s is paused: it gets no messages of queue %s", dag_id, queue_name)
            return done
        while unstarted or (unstarted := run(conn, opening)):
            done["started"] += _start(conn, unstarted, pgqueue_conn_id, conf)
            unstarted = []
        note_dispatches(queue_name, dag_id, run(conn, verbs.open_dispatches(queue_name, dag_id)))
    log.info("queue %s for DAG %s: %s", queue_name, dag_id, dict(done))
    return done


def _start(
    conn: psycopg.Connection[Any],
    dispatches: Sequence[Dispatch],
    pgqueue_conn_id: str,
    conf: Mapping[str, Any] | None = None,
) -> int:
    """Start the runs of recorded dispatches, note each, and return how many.

    Raises RunRefused if Airflow makes none, after it ended the dispatches whose runs were not started.
    """
    for place, one in enumerate(dispatches):
        try:
            dag_runs.start_run(one.dag_id, one.run_id, conf_of(one, pgqueue_conn_id, conf))
        except dag_runs.RunRefused as error:
            for refused in dispatches[place:]:
                run(conn, verbs.end_dispatch(refused.dag_id, refused.run_id, "refused", details=str(error)))
            raise
        run(conn, verbs.start_dispatch(one.dispatch_id))
    return len(dispatches)


def reconcile(
    conn: psycopg.Connection[Any], queue_name: str | None = None, dag_id: str | None = None
) -> tuple[Counter[str], list[Dispatch]]:
    """Compare the open dispatches with what Airflow says of their runs, and end or renew them.

    A run that is queued or running keeps its leases. One that succeeded or failed ends its dispatch. One that is gone
    was deleted: its messages are delivered again. Returns how many ended in which way, and the unstarted ones.
    Any number may do this at once: each dispatch ends once.
    """
    ended: Counter[str] = Counter()
    unstarted: list[Dispatch] = []
    found = run(conn, verbs.open_dispatches(queue_name, dag_id))
    for target, dispatches in groupby(sorted(found, key=lambda one: one.dag_id), key=lambda one: one.dag_id):
        known = list(dispatches)
        states = dag_runs.states_of(target, [one.run_id for one in known])
        alive = [one.dispatch_id for one in known if states.get(one.run_id) in dag_runs.RUNNING]
        if alive:
            run(conn, verbs.extend_dispatches(alive))
        for one in known:
            state = states.get(one.run_id)
            if state == "success":
                ended["success"] += _end(conn, one, "success")
            elif state == "failed":
                tasks = dag_runs.failed_tasks(target, one.run_id)
                ended["failed"] += _end(conn, one, "failed", why_failed(target, one.run_id, tasks))
            elif state is None and one.started_at is None:
                unstarted.append(one)
            elif state is None:
                ended["lost"] += _end(conn, one, "lost", f"run {one.run_id} of DAG {target} was deleted")
    return ended, unstarted


def why_failed(dag_id: str, run_id: str, tasks: list[str]) -> str:
    """Return which run failed, and which of its tasks."""
    return f"run {run_id} of DAG {dag_id} failed" + (f": {', '.join(tasks[:20])}" if tasks else "")


def _end(conn: psycopg.Connection[Any], one: Dispatch, result: Any, details: str | None = None) -> int:
    return int(bool(run(conn, verbs.end_dispatch(one.dag_id, one.run_id, result, details=details))))
