"""Starts DAG runs and reads their states from a task or a trigger, through Airflow's task SDK.

The SDK starts a run only by an exception that ends the task, that of `TriggerDagRunOperator`. So `start_run` sends the
message that Airflow sends after that exception: docs/decisions/0023-dispatches.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from airflow_provider_pgqueue.core.errors import PgQueueError

RUNNING: Final = ("running", "queued")
_STATES: Final = (*RUNNING, "success", "failed")
_NO_DAG: Final = (
    "Give trigger_dag_id the id of a DAG; if there is such a DAG, look at the import errors: Airflow forgets a DAG "
    "whose file has one."
)
_FIXES: Final[Mapping[str, str]] = {
    "not_found": _NO_DAG,
    "import_errors": "Fix the import errors of its file; the page of the DAG shows them.",
    "denied_run_type": "Add DagRunType.OPERATOR_TRIGGERED to the allowed_run_types of the DAG.",
    "value_error": "Give the dispatcher a conf with a value of the right type for each Param of the DAG that needs "
    "one, or give the Param a default.",
}
"""Fixes by the reason that Airflow gives."""
_REFUSALS: Final = (400, 403, 404, 422)
# Characters of ids in one question, which is a URL: httpx takes 65,536, and many a proxy 8,192 for the whole line.
_LONGEST: Final = 5_000
_MAPPED: Final = re.compile(r"(.+)_[0-9]+")


class RunRefused(PgQueueError):
    """Airflow does not make the run: there is no such DAG, it has import errors, or takes no such runs."""


class _NoSupervisor(PgQueueError):
    """The state of a run is unknown here: Airflow started neither a task nor a trigger in this process."""


def start_run(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
    """Start a run of a DAG; one that exists already is fine. Raises RunRefused if Airflow will never make it."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    _sdk()
    try:
        reply = task_runner.SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=dict(conf)))
    except Exception as error:
        status, text, reason = _refusal(error)
        if status not in _REFUSALS:
            raise
        fix = _FIXES.get(reason, "The log of the api-server says more.")
        raise RunRefused(
            f"Airflow does not start a run of DAG {dag_id!r}: {text}",
            f"Its messages were given back without an attempt. {fix}",
        ) from error
    if isinstance(reply, ErrorResponse) and reply.error != ErrorType.DAGRUN_ALREADY_EXISTS:
        raise AirflowRuntimeError(reply)


def is_paused(dag_id: str) -> bool:
    """Return whether a DAG is paused. Raises RunRefused if there is none.

    Airflow 3.1 gives its tasks no information on DAGs: there the result is always False.
    """
    sdk = _sdk()
    if not hasattr(sdk, "get_dag"):
        return False
    try:
        return bool(sdk.get_dag(dag_id).is_paused)
    except Exception as error:
        if _refusal(error)[0] != 404:
            raise
        raise RunRefused(f"there is no DAG {dag_id!r}", _NO_DAG) from error


def states_of(dag_id: str, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the states of the runs that exist: in few requests if all have one state, else in one request for each."""
    return {run_id: state for some in _short(run_ids) for run_id, state in _states_of(dag_id, some).items()}


def failed_tasks(dag_id: str, run_id: str) -> list[str]:
    """Return the ids of the tasks of a run that failed; a mapped task once, however many of it did."""
    states = _sdk().get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
    failed = {name for name, state in states.items() if state == "failed"}
    # Airflow names an instance of a mapped task TASK_INDEX.
    mapped = {name: found[1] for name in failed if (found := _MAPPED.fullmatch(name))}
    known = {task for task in set(mapped.values()) if _sdk().get_ti_count(dag_id, task_ids=[task], run_ids=[run_id])}
    return sorted({mapped[name] if mapped.get(name) in known else name for name in failed})


def _short(run_ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ids in lists that each fit into one question."""
    some: list[str] = []
    room = _LONGEST
    for run_id in run_ids:
        length = len("&run_ids=") + len(quote(run_id, safe=""))
        if some and length > room:
            yield some
            some, room = [], _LONGEST
        some.append(run_id)
        room -= length
    if some:
        yield some


def _states_of(dag_id: str, run_ids: Sequence[str]) -> dict[str, str]:
    # Usually all are under way, and none of those exists that were never started.
    for state in _STATES:
        if _count(dag_id, run_ids, [state]) == len(run_ids):
            return dict.fromkeys(run_ids, state)
    if _count(dag_id, run_ids, None) == 0:
        return {}
    return {run_id: found for run_id in run_ids if (found := _state(dag_id, run_id))}


def _state(dag_id: str, run_id: str) -> str | None:
    try:
        state: str = _sdk().get_dagrun_state(dag_id, run_id)
    except Exception as error:
        if _refusal(error)[0] != 404:
            raise
        return None
    return state


def _refusal(error: Any) -> tuple[int | None, str, str]:
    """Return the HTTP status, the text and the reason, one word, of what the api-server answered, if it did.

    The supervisor of a task passes the response on; `dag.test()` has no supervisor, so the error is the client's.
    """
    if (response := getattr(error, "response", None)) is not None:
        status, detail = response.status_code, getattr(error, "detail", None)
    elif isinstance(told := getattr(getattr(error, "error", None), "detail", None), Mapping):
        status, detail = told.get("status_code"), told.get("detail")
    else:
        return None, "", ""
    inner = detail.get("detail", detail) if isinstance(detail, Mapping) else detail
    if isinstance(inner, Mapping):
        return status, str(inner.get("message", inner)), str(inner.get("reason", ""))
    return status, str(inner or error), ""


def _count(dag_id: str, run_ids: Sequence[str], states: list[str] | None) -> int:
    return int(_sdk().get_dr_count(dag_id=dag_id, run_ids=list(run_ids), states=states))


def _sdk() -> Any:
    """Return what asks Airflow for states, in a task and in a trigger."""
    from airflow.sdk.execution_time import task_runner

    if not hasattr(task_runner, "SUPERVISOR_COMMS"):
        raise _NoSupervisor(
            "Airflow tells of DAG runs in its tasks and triggers only. Run the DAG, or call `dag.test()`."
        )
    return task_runner.RuntimeTaskInstance
