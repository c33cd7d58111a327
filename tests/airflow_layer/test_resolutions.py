"""The tasks of the examples that resolution dead messages, with the templates that Airflow renders."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import Failed, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


def example(name: str) -> Any:
    """Return the module of an example."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "dags_examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def die(conn_id: str, queue: Queue) -> list[int]:
    """Let two orders fail, and return their ids."""
    hook = PgQueueHook(conn_id)
    ids = hook.publish_batch(queue("packing"), [{"order_id": 1}, {"order_id": 2}])
    with hook.lease("packing", max_messages=2) as lease:
        lease.settle({message: Failed("no stock left") for message in lease.held})
    return ids


def rendered(task: Any, context: dict[str, Any], **more: Any) -> Any:
    """Return the task with its templates rendered, as Airflow does for a run."""
    macros = SimpleNamespace(timedelta=timedelta)
    task.render_template_fields(context | {"macros": macros, "dag_run": SimpleNamespace(**more)})
    return task


def test_the_nightly_example_requeues_what_failed_in_the_last_week(
    conn_id: str, queue: Queue, run: Run, context: dict[str, Any], conn: Connection
) -> None:
    ids = die(conn_id, queue)
    now = datetime.now(UTC)
    later = rendered(
        example("pgqueue_reprocess_nightly").dag.get_task("requeue"), context, run_after=now + timedelta(8)
    )
    assert run(later)["requeued"] == 0, "it failed more than a week before"
    tonight = rendered(example("pgqueue_reprocess_nightly").dag.get_task("requeue"), context, run_after=now)
    assert run(tonight)["ids"] == {"requeued": ids}


def test_the_run_of_a_cause_counts_its_messages_and_requeues_them(
    conn_id: str, queue: Queue, run: Run, context: dict[str, Any]
) -> None:
    ids = die(conn_id, queue)
    module = example("pgqueue_resolve_causes")
    (found,) = run(module.causes.get_task("causes"))
    started = module.run_of(found)
    assert started["trigger_run_id"] == f"{found['fingerprint']}__{ids[-1]}"
    tasks = [module.cause.get_task(name) for name in ("count", "requeue")]
    count, requeue = (rendered(task, context, conf=started["conf"]) for task in tasks)
    assert (run(count)["requeued"], run(count)["dry_run"]) == (2, True)
    assert PgQueueHook(conn_id).run(verbs.dead_ids("packing")) == ids
    assert run(requeue)["ids"] == {"requeued": ids}
