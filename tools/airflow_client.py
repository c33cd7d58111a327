"""A client of Airflow's REST API; patient, because a starting task may block a small API server for seconds."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx

REQUEST_TIMEOUT: Final = 30.0
WRITE_TIMEOUT: Final = 120.0  # longer, because a write that got no answer is not sent again
REPEAT_FOR: Final = 120.0
COMPONENTS: Final = ("metadatabase", "scheduler", "triggerer", "dag_processor")
FINISHED: Final = frozenset({"success", "failed"})


class ApiError(Exception):
    """Airflow answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AirflowClient:
    """The REST API of one Airflow that logs everybody in as admin.

    Reads and `trigger` are repeated for two minutes when the connection breaks or times out; other writes are sent
    once. Every method that waits raises TimeoutError with the last state that it saw.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # Never through a proxy, because the server is on the loopback address; and with a connection for each request:
        # a server that was killed has closed those that were kept, and a write is not sent again.
        self._http = httpx.Client(base_url=url, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._token: str | None = None

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the answer of GET /api/v2/<path>, which is JSON."""
        query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
        return self._repeat(lambda: self._send("GET", f"/api/v2/{path}{query}"))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer of POST /api/v2/<path>."""
        return self._send("POST", f"/api/v2/{path}", body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer of PATCH /api/v2/<path>."""
        return self._send("PATCH", f"/api/v2/{path}", body)

    def health(self) -> dict[str, Any]:
        """Return the state of each component, or {} while the API server does not answer."""
        try:
            answer: dict[str, Any] = self._request("GET", "/api/v2/monitor/health", None, {}, timeout=5.0)
        except (httpx.TransportError, ApiError):
            return {}
        return answer

    def wait_healthy(
        self, timeout: float = 120.0, *, since: datetime | None = None, before: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until all components are healthy; with `since`, by a heartbeat after that time.

        Airflow calls a component healthy for 30 s after its last heartbeat, so also one that was just killed. `before`
        is called before each poll.
        """

        def poll() -> Any:
            before()
            return self.health()

        _wait(poll, lambda health: all(_healthy(health, name, since) for name in COMPONENTS), timeout, "health")

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until the DAG was parsed; fails with the import errors if there are some by then."""

        def poll() -> Any:
            try:
                return self.get(f"dags/{quote(dag_id)}")
            except ApiError as error:
                if error.status != 404:
                    raise
                return self.import_errors()

        _wait(poll, lambda answer: isinstance(answer, dict), 300.0, f"DAG {dag_id!r}")

    def import_errors(self) -> list[str]:
        """Return the errors of DAG files that could not be parsed."""
        errors = self.get("importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in errors]

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, **body: Any) -> str:
        """Start a run and return its id; the id makes it safe to ask again when no answer came."""
        run_id = f"manual__{uuid.uuid4()}"
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": run_id} | body

        def start() -> None:
            try:
                self.post(f"dags/{quote(dag_id)}/dagRuns", body)
            except ApiError as error:
                if error.status != 409:
                    raise

        self._repeat(start)
        return str(body["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run."""
        answer: dict[str, Any] = self.get(_run_path(dag_id, run_id))
        return answer

    def runs(self, dag_id: str, **filters: Any) -> list[dict[str, Any]]:
        """Return all runs of a DAG (`~` for all DAGs), oldest first."""
        parameters = {"order_by": "run_after"} | filters
        return list(self._pages(f"dags/{quote(dag_id, safe='~')}/dagRuns", "dag_runs", parameters))

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float = 300.0) -> str:
        """Wait until the run has ended, and return how."""
        what = f"end of run {run_id!r} of {dag_id!r}"
        return str(_wait(lambda: self.run(dag_id, run_id)["state"], FINISHED.__contains__, timeout, what))

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run, mapped ones too (`~`, `~` for all runs of all DAGs)."""
        return list(self._pages(f"{_run_path(dag_id, run_id)}/taskInstances", "task_instances", {}))

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Any:
        """Return what a task handed on."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/return_value"
        return self.get(path, map_index=map_index, deserialize="true")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, *, attempt: int = 1, map_index: int = -1) -> str:
        """Return the log of one try of a task, a line an event, with everything that was logged next to it."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{attempt}"
        content = self.get(path, map_index=map_index, full_content="true")["content"]
        return "\n".join(json.dumps(line, ensure_ascii=False) for line in content)

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        """Let tasks of a run be done again, whatever became of them, and the run go on."""
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": list(task_ids)}
        self.post(f"dags/{quote(dag_id)}/clearTaskInstances", body)

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause a DAG, or let it run."""
        self.patch(f"dags/{quote(dag_id)}", {"is_paused": paused})

    def _pages(self, path: str, key: str, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        offset, total = 0, 1
        while offset < total:
            answer = self.get(path, limit=100, offset=offset, **parameters)
            yield from answer[key]
            total = answer["total_entries"]
            offset += 100

    def _repeat(self, attempt: Callable[[], Any]) -> Any:
        give_up_at = time.monotonic() + REPEAT_FOR
        while True:
            try:
                return attempt()
            except httpx.TransportError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.5)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        timeout = REQUEST_TIMEOUT if method == "GET" else WRITE_TIMEOUT
        try:
            return self._request(method, path, body, self._authorization(), timeout)
        except ApiError as error:
            if error.status != 401:
                raise
        self._token = None
        return self._request(method, path, body, self._authorization(), timeout)

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            self._token = self._repeat(lambda: self._request("GET", "/auth/token", None, {}))["access_token"]
        return {"Authorization": f"Bearer {self._token}"}

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        timeout: float = REQUEST_TIMEOUT,
    ) -> Any:
        answer = self._http.request(
            method, path, json=body, headers={"Accept": "application/json", **headers}, timeout=timeout
        )
        if answer.is_error:
            raise ApiError(answer.status_code, f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json() if answer.content else None


def _healthy(health: Mapping[str, Any], component: str, since: datetime | None) -> bool:
    state = health.get(component) or {}
    if state.get("status") != "healthy":
        return False
    heartbeat = state.get(f"latest_{component}_heartbeat")
    return since is None or heartbeat is None or datetime.fromisoformat(heartbeat) > since


def _run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{quote(dag_id, safe='~')}/dagRuns/{quote(run_id, safe='~')}"


def _wait(poll: Callable[[], Any], enough: Callable[[Any], bool], timeout: float, what: str) -> Any:
    give_up_at = time.monotonic() + timeout
    while not enough(seen := poll()):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"no {what} within {timeout:.0f} s; last seen: {seen}")
        time.sleep(0.5)
    return seen
