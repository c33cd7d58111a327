"""Ends the dispatch of a DAG run when the scheduler ends the run, and records the errors of its tasks.

It only makes dispatches end sooner: if the database cannot be reached, or too many runs end at once, the
next dispatcher or `PgQueueReconcileOperator` ends them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final, NamedTuple

from airflow.listeners import hookimpl

from airflow_provider_pgqueue.dispatch.background import Background, is_row, loaded

log = logging.getLogger(__name__)
_PREFIX: Final = "pgqueue__"


class _Ended(NamedTuple):
    dag_id: str
    run_id: str
    result: str
    tasks: list[str]


class _Failed(NamedTuple):
    dag_id: str
    run_id: str
    task_id: str
    error: BaseException | str
    log_url: str | None


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: str | BaseException | None) -> None:
    """Record the error of a task that is not tried again: Airflow ends its run only after this."""
    fields = loaded(task_instance)
    if not error or not str(fields.get("run_id")).startswith(_PREFIX) or fields.get("state") != "failed":
        return
    log_url = None if is_row(fields) else getattr(task_instance, "log_url", None)
    _ended.put(_Failed(fields["dag_id"], fields["run_id"], fields["task_id"], error, log_url))
    if not is_row(fields):
        _ended.flush()


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Archive the messages of the run."""
    _finish_dispatch(dag_run, "success")


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Give the messages of the run back, or archive them as failed."""
    _finish_dispatch(dag_run, "failed")


def _finish_dispatch(dag_run: Any, result: str) -> None:
    if not dag_run.run_id.startswith(_PREFIX):
        return
    tasks: list[str] = []
    if result == "failed":
        # Only loaded task instances: get_task_instances() commits, which breaks the locks of the scheduler.
        with suppress(Exception):
            tasks = sorted({ti.task_id for ti in dag_run.task_instances if ti.state == "failed"})
    _ended.put(_Ended(dag_run.dag_id, dag_run.run_id, result, tasks))


def _record(one: _Ended | _Failed) -> None:
    # Imported here because Airflow loads plugins in every process.
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    statement = _statement(one)
    for conn_id in _connection_ids():
        try:
            found = PgQueueHook(conn_id).run(statement)
            if found is not None and found is not False:  # else the messages of the run are in another database
                break
        except Exception as error:
            log.warning("%s: %s", _MISSED[type(one)].format(one), error)


def _statement(one: _Ended | _Failed) -> Any:
    from airflow_provider_pgqueue.core import verbs
    from airflow_provider_pgqueue.core.outcome import describe, storable

    if isinstance(one, _Ended):
        return verbs.end_dispatch(one.dag_id, one.run_id, one.result, failed_tasks=one.tasks)  # type: ignore[arg-type]
    told = {"message": storable(one.error[:2000])} if isinstance(one.error, str) else describe(one.error)
    failure = told | {"task_id": one.task_id} | ({"log_url": one.log_url} if one.log_url else {})
    return verbs.record_task_failure(one.dag_id, one.run_id, one.task_id, failure)


def _connection_ids() -> list[str]:
    """Return the connections to try, as configured: any user who triggers a run writes its conf."""
    from airflow.providers.common.compat.sdk import conf

    page = conf.get("pgqueue", "conn_id", fallback="pgqueue_default")
    known = conf.get("pgqueue", "dispatch_conn_ids", fallback="") or page
    return [name for one in known.split(",") if (name := one.strip())]


_MISSED: Final[dict[type, str]] = {
    _Ended: "run {0.run_id} of DAG {0.dag_id} ended, which a reconciliation has to record",
    _Failed: "the error of task {0.task_id} in run {0.run_id} of DAG {0.dag_id} is not recorded with its messages",
}
_ended: Background[_Ended | _Failed] = Background("pgqueue-dispatches", _record)
