"""What answers a task's questions about DAG runs, with the client of Airflow and without an api-server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from airflow.sdk.api.client import Client, ServerResponseError
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import (
    DagRunStateResult,
    DRCount,
    ErrorResponse,
    GetDagRunState,
    GetDRCount,
    GetTaskStates,
    GetTICount,
    TaskStatesResult,
    TICount,
    TriggerDagRun,
)


class Supervisor:
    """Runs and DAGs as Airflow knows them. Questions are real requests of Airflow's client, as long as they are."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.tasks: dict[tuple[str, int], str] = {}  # of each run: task and map index
        self.no_dags: set[str] = set()
        self.refuses: dict[str, str] = {}  # with what reason and text it starts no run
        self.in_process = False  # as in dag.test(), where a task gets the client's own errors
        self.started: list[str] = []
        self.on_start: Callable[[str], None] = lambda run_id: None
        self.lines: list[int] = []
        self.asked: Counter[str] = Counter()
        self._client = Client(base_url="http://airflow", token="", transport=httpx.MockTransport(self._answer))

    def send(self, msg: Any) -> Any:
        """Answer a message of a task as the supervisor does."""
        self.asked[type(msg).__name__] += 1
        if isinstance(msg, GetDRCount):
            number = self._client.dag_runs.get_count(msg.dag_id, run_ids=msg.run_ids, states=msg.states)
            return DRCount(count=number.count)
        if isinstance(msg, GetDagRunState):
            try:
                return DagRunStateResult(state=self._client.dag_runs.get_state(msg.dag_id, msg.run_id).state)
            except ServerResponseError as error:
                if self.in_process:
                    raise
                told = {"status_code": error.response.status_code}
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=told)) from error
        if isinstance(msg, GetTaskStates):
            states = {f"{task}_{index}" if index >= 0 else task: state for (task, index), state in self.tasks.items()}
            return TaskStatesResult(task_states=dict.fromkeys(msg.run_ids or [], states))
        if isinstance(msg, GetTICount):
            return TICount(count=sum(task in (msg.task_ids or []) for task, _ in self.tasks))
        if msg.dag_id in self.no_dags:
            if self.in_process:
                self._client.dags.get(msg.dag_id)
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404}))
        if isinstance(msg, TriggerDagRun):
            if self.refuses:
                told = {"status_code": 400, "detail": {"detail": self.refuses}}
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=told))
            self.on_start(msg.run_id)
            self.started.append(msg.run_id)
            self.runs[msg.run_id] = "queued"
            return None
        from airflow.sdk.execution_time.comms import DagResult

        return DagResult.model_construct(dag_id=msg.dag_id, is_paused=False)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/dags/"):
            return httpx.Response(404, json={"detail": {"reason": "not_found"}})
        self.lines.append(len(request.url.raw_path))
        if request.url.path.endswith("/state"):
            state = self.runs.get(request.url.path.split("/")[-2])
            return httpx.Response(200 if state else 404, json={"state": state} if state else {"detail": "not found"})
        asked = request.url.params
        states = asked.get_list("states") or ["queued", "running", "success", "failed"]
        return httpx.Response(200, json=sum(self.runs.get(one) in states for one in asked.get_list("run_ids")))
