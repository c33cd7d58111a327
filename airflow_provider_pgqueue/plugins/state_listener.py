"""Publishes the states of DAG runs and tasks to a queue, if the section `[pgqueue]` of Airflow's configuration says so.

A state is news and no more: one that cannot be published within the bounds below is lost, and nobody waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, NamedTuple

from airflow.listeners import hookimpl

from airflow_provider_pgqueue.plugins.background import Background, is_row, loaded

log = logging.getLogger(__name__)
_BATCH: Final = 500


class _StateSettings(NamedTuple):
    """What the configuration says."""

    queue_name: str
    conn_id: str
    kinds: frozenset[str]
    patterns: tuple[str, ...]

    def wants(self, kind: str, dag_id: str) -> bool:
        """Return whether the states of these are published: the last pattern that matches the DAG decides."""
        if kind not in self.kinds:
            return False
        wanted = not self.patterns or self.patterns[0].startswith("!")
        for pattern in self.patterns:
            if fnmatchcase(dag_id, pattern.removeprefix("!")):
                wanted = not pattern.startswith("!")
        return wanted


class _State(NamedTuple):
    settings: _StateSettings
    body: dict[str, Any]


@cache
def settings() -> _StateSettings | None:
    """Return what the configuration says, read once; None if it names no queue."""
    from airflow.providers.common.compat.sdk import conf

    queue_name = conf.get("pgqueue", "states_queue", fallback="").strip()
    if not queue_name:
        return None
    return _StateSettings(
        queue_name,
        conf.get("pgqueue", "states_conn_id", fallback="pgqueue_default").strip(),
        frozenset(_words(conf.get("pgqueue", "states_of", fallback="dag_run"))),
        tuple(_words(conf.get("pgqueue", "states_dags", fallback=""))),
    )


def _words(text: str) -> list[str]:
    return [word for one in text.split(",") if (word := one.strip())]


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Publish that a run began."""
    _hear("dag_run", "running", dag_run)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Publish that a run succeeded."""
    _hear("dag_run", "success", dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Publish that a run failed."""
    _hear("dag_run", "failed", dag_run)


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:
    """Publish that a task began."""
    _hear("task", "running", task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """Publish that a task succeeded."""
    _hear("task", "success", task_instance)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """Publish that a try of a task failed."""
    _hear("task", "failed", task_instance)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """Publish that a task skipped itself."""
    _hear("task", "skipped", task_instance)


def _hear(kind: str, state: str, thing: Any) -> None:
    """Hand a state over, whatever happens: an error here would be one of the scheduler or of somebody's task."""
    try:
        known = settings()
        if known is None:
            return
        fields = loaded(thing)
        if not known.wants(kind, str(fields.get("dag_id"))):
            return
        if not _states.put(_State(known, _body(kind, state, fields))):
            _say("too many states wait: some are lost")
        elif kind == "task" and state != "running" and not is_row(fields):
            _states.flush()
    except Exception as error:
        _say(f"a state of a {kind} is lost: {type(error).__name__}: {error}")


def _body(kind: str, state: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = ["dag_id", "run_id"]
    names += ["task_id", "map_index", "try_number"] if kind == "task" else ["run_type", "logical_date", "run_after"]
    # Neither conf nor the error, which may quote anything.
    return {
        "kind": kind,
        "state": state,
        "at": datetime.now(UTC).isoformat(),
        **{name: _plain(fields.get(name)) for name in names},
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else getattr(value, "isoformat", value.__str__)()


def _publish(some: list[_State]) -> None:
    # Not before: Airflow imports its plugins in every process.
    from airflow_provider_pgqueue.core import verbs
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    known, bodies = some[0].settings, [one.body for one in some]
    try:
        statement = verbs.publish_batch(
            known.queue_name,
            bodies,
            topics=[f"{body['kind']}.{body['state']}" for body in bodies],
            references=[_reference(body) for body in bodies],
        )
        PgQueueHook(known.conn_id).run(statement)
    except Exception as error:
        _say(f"cannot publish states to queue {known.queue_name}, which are lost: {error}")
    else:
        _said.clear()


def _reference(body: Mapping[str, Any]) -> str:
    names = ("dag_id", "run_id", "task_id", "map_index")
    return "/".join(str(body[name]) for name in names if name in body)


# The first words of what was logged since something was last published: each is logged once.
_said: set[str] = set()


def _say(text: str) -> None:
    kind = text[:20]
    if kind not in _said:
        _said.add(kind)
        log.warning("%s. This is logged once until it works again.", text.rstrip("."))


_states: Background[_State] = Background("pgqueue-states", _publish, batch=_BATCH)
