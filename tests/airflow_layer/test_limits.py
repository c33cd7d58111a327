"""The example of a queue with limits, and a sensor that waits for one."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import run as run_verb
from airflow_provider_pgqueue.core import verbs
from tools import ROOT

Connection = psycopg.Connection[Any]
Run = Callable[..., Any]


def test_the_example_makes_as_many_calls_as_its_queue_allows(conn_id: str, conn: Connection, run: Run) -> None:
    example = runpy.run_path(str(ROOT / "dags_examples" / "pgqueue_limits.py"))["dag"]
    create, consume = (example.get_task(name) for name in ("create_queue", "consume"))
    assert (run(create), run(create)) == (True, False)
    keys = [f"customer {number % 10}" for number in range(40)]
    run_verb(conn, verbs.publish_batch("calls", range(40), group_keys=keys))
    assert 10 <= run(consume)["success"] < 40
    (found,) = run_verb(conn, verbs.ready_queues(["calls"]))
    assert found.ready < 10
