"""What runs Airflow is killed, or the database restarted, while dispatches are at each stage: on real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.e2e.conftest import PATIENCE, until
from tests.e2e.test_dispatch import account, create, dispatches, states
from tools.airflow import Stack
from tools.airflow_client import FINISHED
from tools.postgres import Cluster

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]
STAGES: Final = ("before_run", "before_note", "during_run")


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    """A transaction that never takes effect, on a connection that may be lost meanwhile."""
    conn = psycopg.connect(dsn)
    try:
        yield conn
    finally:
        with suppress(psycopg.OperationalError):
            conn.rollback()
        conn.close()


def keep_from_starting(metadata: Connection, run_id: str, place: int) -> None:
    """Let nobody make this run until the transaction ends: its row is there, and yet is not."""
    metadata.execute(
        "INSERT INTO dag_run SELECT (jsonb_populate_record(d, jsonb_build_object('id', %s::int, 'dag_id', 'e2e_handle',"
        " 'run_id', %s::text))).* FROM dag_run d WHERE d.logical_date IS NULL LIMIT 1",
        [-place, run_id],
    )


def holders(conn: Connection, queues: list[str]) -> list[int]:
    """Return the processes of the dispatchers that opened the dispatches of these queues."""
    rows = conn.execute("SELECT dispatched_by FROM messages.dispatch WHERE queue_name = ANY (%s)", [queues]).fetchall()
    return [int(found[1]) for (name,) in rows if (found := re.search(r"@(\d+)@", name))]


@pytest.mark.parametrize("disaster", ["worker", "scheduler, api-server", "database"])
def test_no_stage_of_a_dispatch_loses_or_repeats_a_message(
    stack: Stack, queue_conn: Connection, cluster: Cluster, tmp_path: Path, disaster: str
) -> None:
    queues = [f"e2e_{disaster.partition(',')[0]}_{stage}" for stage in STAGES]
    flag = tmp_path / "wait"
    flag.touch()
    bodies = [{}, {}, {"wait_while": str(flag)}]
    ids = [create(queue_conn, queue, [body])[0] for queue, body in zip(queues, bodies, strict=True)]
    run_ids = [f"pgqueue__{queue}__{id_}__1" for queue, id_ in zip(queues, ids, strict=True)]
    queue_dsn = cluster.dsn("e2e_queue")
    for dag_id in ("e2e_dispatch", "e2e_handle"):
        stack.client.wait_for_dag(dag_id)
    with ExitStack() as held:
        dispatchers = {queues[2]: hand_over(stack, queue_conn, queues[2])}
        until(flag.read_text, timeout=PATIENCE, what="a run that works")
        # Quickly, because whoever asks Airflow for a run waits a minute for the answer.
        unnoted, noting = held.enter_context(session(stack.metadata)), held.enter_context(session(queue_dsn))
        keep_from_starting(unnoted, run_ids[1], 1)
        dispatchers[queues[1]] = hand_over(stack, queue_conn, queues[1])
        keep_from_starting(held.enter_context(session(stack.metadata)), run_ids[0], 2)
        dispatchers[queues[0]] = hand_over(stack, queue_conn, queues[0])
        noting.execute("LOCK TABLE messages.dispatch IN EXCLUSIVE MODE")
        unnoted.rollback()
        waits = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%start_dispatch(%' AND wait_event_type = 'Lock'"
        until(lambda: queue_conn.execute(waits).fetchone(), timeout=PATIENCE, what="a dispatcher that notes a run")
        if disaster == "worker":
            for process in [*holders(queue_conn, queues[:2]), int(flag.read_text())]:
                os.kill(process, signal.SIGKILL)
        elif disaster != "database":
            for component in disaster.split(", "):
                stack.kill(component, signal.SIGKILL)
        else:
            cluster.stop()
            cluster.start()
    flag.unlink()
    stack.start()
    with psycopg.connect(queue_dsn, autocommit=True) as conn:
        until(
            finished(stack, conn, dispatchers),
            timeout=2 * PATIENCE,
            what="the end of three messages",
            tell=lambda: [states(stack, conn, queue) for queue in queues],
        )
        assert [account(conn, queue) for queue in queues] == [{"success": 1}] * 3
        assert [run(conn, verbs.open_dispatches(queue)) for queue in queues] == [[]] * 3
        ends = {queue: [result for _, result in dispatches(conn, queue)] for queue in queues}
    print(f"{disaster}: {ends}")
    if disaster == "worker":
        # The dispatchers that were killed are continued, without a second run. A run whose task was killed has failed.
        assert [ends[queue] for queue in queues] == [["success"], ["success"], ["failed", "success"]]


def start_dispatcher(stack: Stack, queue: str) -> str:
    return stack.client.trigger("e2e_dispatch", conf={"queue": queue, "dag": "e2e_handle"})


def hand_over(stack: Stack, conn: Connection, queue: str) -> str:
    """Start a dispatcher, and return its run when it has leased."""
    run_id = start_dispatcher(stack, queue)
    until(lambda: dispatches(conn, queue), timeout=PATIENCE, what=f"a dispatch of {queue}")
    return run_id


def finished(stack: Stack, conn: Connection, dispatchers: dict[str, str]) -> Callable[[], bool]:
    """Return a look whether all is archived, which starts what ended, and dispatches again as a schedule would.

    Namely what a run gave back, what a dispatcher left that failed, and what a scheduler did not tell that was killed:
    whether a task whose scheduler was killed is done again, is for Airflow to say.
    """
    next_poll = time.monotonic()

    def look() -> bool:
        nonlocal next_poll
        if time.monotonic() > next_poll:  # not each time: it reads all processes of the machine
            stack.start()
            for queue, run_id in dispatchers.items():
                *_, (_, result) = dispatches(conn, queue)
                state = stack.client.run("e2e_dispatch", run_id)["state"]
                if state in FINISHED and result != "success":
                    conn.execute(
                        "UPDATE messages.message SET visible_at = clock_timestamp() WHERE queue_name = %s", [queue]
                    )
                    dispatchers[queue] = start_dispatcher(stack, queue)
            next_poll = time.monotonic() + 5
        return all(account(conn, queue) == {"success": 1} for queue in dispatchers)

    return look
