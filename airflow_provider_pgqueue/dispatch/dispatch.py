"""Hands messages over to DAG runs, and compares the dispatches with what became of the runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import require, run
from airflow_provider_pgqueue.core.errors import InUse
from airflow_provider_pgqueue.core.message import Dispatch
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.dispatch import runs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.telemetry.telemetry import record_dispatches

log = logging.getLogger(__name__)

CONF: Final = "pgqueue"
"""The key of a run's `conf` under which its messages are named."""
_NEEDED: Final = ("open_dispatches", "start_dispatch", "extend_dispatches", "end_dispatch")


def conf_of(dispatch: Dispatch, conf: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `conf` of a run: the caller's, and which messages it has. Never a body, and no connection."""
    return {**(conf or {}), CONF: {"queue_name": dispatch.queue_name, "ids": dispatch.ids}}


def hand_over(
    pgqueue_conn_id: str,
    queue_name: str,
    dag_id: str,
    opening: Statement[list[Dispatch]],
    conf: Mapping[str, Any] | None,
) -> Counter[str]:
    """Reconcile, start the runs that an earlier dispatcher recorded and did not start, and those of `opening`.

    `opening` is run until it opens no more. Returns numbers of dispatches: `started`, and by result the earlier
    dispatches that ended. A paused DAG gets no messages. If Airflow makes no run of the DAG, the dispatches without a
    run end, and RunRefused is raised.
    """
    with PgQueueHook(pgqueue_conn_id).connect() as conn:
        require(conn, (opening.function, *_NEEDED), queue_name)
        done, unstarted = reconcile(conn, queue_name, dag_id)
        try:
            if runs.is_paused(dag_id):
                log.warning("DAG %s is paused: it gets no messages of queue %s", dag_id, queue_name)
                return done
            unstarted = _renew(conn, unstarted, done)
            poll_at = monotonic() + TUNING.poll_started_every
            while unstarted or (unstarted := run(conn, opening)):
                first = unstarted[0]
                runs.start_run(dag_id, first.run_id, conf_of(first, conf))
                run(conn, verbs.start_dispatch(first.dispatch_id))
                done["started"] += 1
                del unstarted[0]
                if monotonic() >= poll_at:
                    # The runs that were started first, and those still to be started, must keep their messages.
                    ended, left = reconcile(conn, queue_name, dag_id)
                    done += ended
                    unstarted = _renew(conn, left, done)
                    poll_at = monotonic() + TUNING.poll_started_every
        except runs.RunRefused as error:
            for one in unstarted:
                _end(conn, one, "refused", str(error))
            raise
        record_dispatches(queue_name, dag_id, run(conn, verbs.open_dispatches(queue_name, dag_id)))
    log.info("queue %s for DAG %s: %s", queue_name, dag_id, dict(done))
    return done


def _renew(conn: psycopg.Connection[Any], unstarted: Sequence[Dispatch], done: Counter[str]) -> list[Dispatch]:
    """Renew the leases of dispatches without a run, and return those that hold a message; the others end as lost."""
    if not unstarted:
        return []
    renewed = run(conn, verbs.extend_dispatches([one.dispatch_id for one in unstarted]))
    held = set(renewed)
    lost = [one for one in unstarted if one.dispatch_id not in held]
    _lose(conn, lost)
    done += Counter(lost=len(lost))
    return [one for one in unstarted if one.dispatch_id in held]


def end_abandoned(conn: psycopg.Connection[Any], unstarted: Sequence[Dispatch]) -> tuple[Counter[str], list[Dispatch]]:
    """End the dispatches that no dispatcher will start: as refused if their DAG is gone, as lost after their lease.

    Returns the numbers of ended dispatches by result, and the others. Airflow 3.1 gives tasks no information on DAGs:
    there all of them end as lost.
    """
    gone = {dag_id: why for dag_id in {one.dag_id for one in unstarted} if (why := _why_gone(dag_id))}
    refused = [one for one in unstarted if one.dag_id in gone]
    for one in refused:
        _end(conn, one, "refused", gone[one.dag_id])
    left = [one for one in unstarted if one.dag_id not in gone]
    overdue = run(conn, verbs.overdue_dispatches([one.dispatch_id for one in left]))
    over = set(overdue)
    lost = [one for one in left if one.dispatch_id in over]
    _lose(conn, lost)
    return +Counter(refused=len(refused), lost=len(lost)), [one for one in left if one.dispatch_id not in over]


def _why_gone(dag_id: str) -> str | None:
    try:
        runs.is_paused(dag_id)
    except runs.RunRefused as error:
        return str(error)
    return None


def _lose(conn: psycopg.Connection[Any], dispatches: Sequence[Dispatch]) -> None:
    for one in dispatches:
        _end(conn, one, "lost", f"the run of DAG {one.dag_id} was not started while it had its messages")


def reconcile(
    conn: psycopg.Connection[Any], queue_name: str | None = None, dag_id: str | None = None
) -> tuple[Counter[str], list[Dispatch]]:
    """Compare the open dispatches with what Airflow says of their runs, and end or renew them.

    A run that is queued or running keeps its leases. A run that succeeded or failed ends its dispatch. A run that is
    gone was deleted: its messages are delivered again. Returns the numbers of ended dispatches by result, and the
    dispatches whose run was never started. Any number of processes may reconcile at once: each dispatch ends once.
    """
    ended: Counter[str] = Counter()
    unstarted: list[Dispatch] = []
    found = run(conn, verbs.open_dispatches(queue_name, dag_id))
    for target, dispatches in groupby(sorted(found, key=lambda one: one.dag_id), key=lambda one: one.dag_id):
        known = list(dispatches)
        states = runs.states_of(target, [one.run_id for one in known])
        if alive := [one.dispatch_id for one in known if states.get(one.run_id) in runs.RUNNING]:
            run(conn, verbs.extend_dispatches(alive))
        for one in known:
            match states.get(one.run_id):
                case "running" | "queued" if one.started_at is None:
                    run(conn, verbs.start_dispatch(one.dispatch_id))
                case "success":
                    ended["success"] += _end(conn, one, "success")
                case "failed":
                    ended["failed"] += _end(conn, one, "failed", tasks=runs.failed_tasks(target, one.run_id))
                case None if one.started_at is None:
                    unstarted.append(one)
                case None:
                    ended["lost"] += _end(conn, one, "lost", f"the run of DAG {target} was deleted")
    return ended, unstarted


def _end(
    conn: psycopg.Connection[Any],
    one: Dispatch,
    result: Any,
    details: str | None = None,
    tasks: Sequence[str] | None = None,
) -> int:
    statement = verbs.end_dispatch(one.dag_id, one.run_id, result, details=details, failed_tasks=tasks)
    try:
        return int(bool(run(conn, statement)))
    except InUse as error:
        # Another transaction holds this dispatch; the others must not wait for it. The next reconciliation ends it.
        log.warning("%s", error)
        return 0
