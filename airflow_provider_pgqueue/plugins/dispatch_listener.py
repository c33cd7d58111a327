"""Ends the dispatch of a DAG run when the scheduler ends the run.

It only makes quick what a reconciliation makes true: if the database cannot be reached, or too much ends at once, the
next dispatcher or `PgQueueReconcileOperator` finds it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final, NamedTuple

from airflow.listeners import hookimpl

from airflow_provider_pgqueue.plugins.background import Background
from airflow_provider_pgqueue.plugins.page import connection_id

log = logging.getLogger(__name__)
_PREFIX: Final = "pgqueue__"


class _Ended(NamedTuple):
    dag_id: str
    run_id: str
    result: str
    tasks: list[str]


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Archive the messages of the run."""
    _hear(dag_run, "success")


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Give the messages of the run back, or archive them as failed."""
    _hear(dag_run, "failed")


def _hear(dag_run: Any, result: str) -> None:
    if not dag_run.run_id.startswith(_PREFIX):
        return
    tasks: list[str] = []
    if result == "failed":
        # As the run knows them: get_task_instances() commits, which breaks the locks of the scheduler.
        with suppress(Exception):
            tasks = sorted({ti.task_id for ti in dag_run.task_instances if ti.state == "failed"})
    _ended.put(_Ended(dag_run.dag_id, dag_run.run_id, result, tasks))


def _end(some: list[_Ended]) -> None:
    # Not before: Airflow imports its plugins in every process.
    from airflow_provider_pgqueue.core import verbs
    from airflow_provider_pgqueue.dispatch import why_failed
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    for one in some:
        details = why_failed(one.dag_id, one.run_id, one.tasks) if one.result == "failed" else None
        statement = verbs.end_dispatch(one.dag_id, one.run_id, one.result, details=details)  # type: ignore[arg-type]
        for conn_id in _connection_ids():
            try:
                if PgQueueHook(conn_id).run(statement) is not None:
                    break
            except Exception as error:
                log.warning(
                    "run %s of DAG %s ended, which a reconciliation has to note: %s", one.run_id, one.dag_id, error
                )


def _connection_ids() -> list[str]:
    """Return whose databases may know the run: as configured, because anybody who triggers a run writes its conf."""
    from airflow.providers.common.compat.sdk import conf

    known = conf.get("pgqueue", "dispatch_conn_ids", fallback="") or connection_id()
    return [name for one in known.split(",") if (name := one.strip())]


_ended: Background[_Ended] = Background("pgqueue-dispatches", _end)
