"""One message, one DAG run, and nothing in between can lose it: on a real Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.e2e.conftest import PATIENCE, places_of, unpaused, until, wait_for_run
from tools.airflow import Stack
from tools.postgres import Cluster

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]


def create(conn: Connection, queue_name: str, bodies: list[Any], **policy: Any) -> list[int]:
    run(conn, verbs.create_queue(queue_name, **policy))
    return run(conn, verbs.publish_batch(queue_name, bodies))


def dispatch(stack: Stack, queue_name: str, dag_id: str = "e2e_handle", expect: str = "success") -> Any:
    for known in ("e2e_dispatch", dag_id):
        stack.client.wait_for_dag(known)
    run_id = stack.client.trigger("e2e_dispatch", conf={"queue": queue_name, "dag": dag_id})
    assert wait_for_run(stack, "e2e_dispatch", run_id) == expect
    return stack.client.xcom("e2e_dispatch", run_id, "dispatch") if expect == "success" else run_id


def dispatches(conn: Connection, queue_name: str) -> list[tuple[str, str | None]]:
    return conn.execute(
        "SELECT run_id, result FROM messages.dispatch WHERE queue_name = %s ORDER BY dispatch_id", [queue_name]
    ).fetchall()


def ended(conn: Connection, queue_name: str, *results: str) -> None:
    """Wait until the dispatches of a queue have ended in this way."""
    until(
        lambda: [result for _, result in dispatches(conn, queue_name)] == list(results),
        timeout=PATIENCE,
        what=f"dispatches of {queue_name} that ended {results}",
        tell=lambda: f"but are {dispatches(conn, queue_name)}",
    )


def states(stack: Stack, conn: Connection, queue: str) -> object:
    """Return what a reader of a failure wants to know of a queue."""
    messages = conn.execute(
        "SELECT id, attempts, visible_at, lock_expires_at, locked_by FROM messages.message WHERE queue_name = %s",
        [queue],
    ).fetchall()
    runs = [run for dag_id in ("e2e_dispatch", "e2e_handle") for run in stack.client.runs(dag_id)]
    return messages, dispatches(conn, queue), [(run["dag_run_id"], run["state"]) for run in runs if queue in str(run)]


def account(conn: Connection, queue_name: str) -> dict[str, int]:
    """Return how many messages of a queue were archived with each result, and how many twice."""
    rows = conn.execute(
        "SELECT result, count(*), count(*) - count(DISTINCT id) FROM messages.message_archive"
        " WHERE queue_name = %s GROUP BY 1",
        [queue_name],
    ).fetchall()
    assert [twice for _, _, twice in rows if twice] == []
    return {result: number for result, number, _ in rows}


def test_each_message_is_finished_by_a_run_of_its_own(stack: Stack, queue_conn: Connection) -> None:
    ids = create(queue_conn, "e2e_each", [{"n": n} for n in range(3)])
    assert dispatch(stack, "e2e_each") == {"started": 3}
    ended(queue_conn, "e2e_each", "success", "success", "success")
    assert account(queue_conn, "e2e_each") == {"success": 3}
    handled_by = queue_conn.execute(
        "SELECT handled_by FROM messages.message_archive WHERE id = %s", [ids[0]]
    ).fetchone()
    assert handled_by == (f"e2e_handle/pgqueue__e2e_each__{ids[0]}__1",)
    conf = stack.client.run("e2e_handle", f"pgqueue__e2e_each__{ids[0]}__1")["conf"]
    assert conf == {"pgqueue": {"queue_name": "e2e_each", "ids": [ids[0]]}}


def test_mapped_tasks_of_a_run_read_their_messages(stack: Stack, queue_conn: Connection, cluster: Cluster) -> None:
    create(queue_conn, "e2e_mapped", [{"n": n, "secret": "kiwi-in-a-body"} for n in range(3)])
    stack.client.wait_for_dag("e2e_handle_mapped")
    stack.client.wait_for_dag("e2e_dispatch_batches")
    stack.client.trigger("e2e_dispatch_batches")
    ended(queue_conn, "e2e_mapped", "success")
    ((run_id, _),) = dispatches(queue_conn, "e2e_mapped")
    read = [stack.client.xcom("e2e_handle_mapped", run_id, "one_of_them", map_index=place) for place in range(3)]
    assert read == [0, 1, 2]
    assert places_of("kiwi-in-a-body", stack, cluster) == []


def test_a_failed_run_is_delivered_again_dies_and_is_dismissed_when_it_is_cleared(
    stack: Stack, queue_conn: Connection, tmp_path: Path
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    (id_,) = create(queue_conn, "e2e_fails", [{"fail_while": str(flag)}], max_attempts=2)
    assert dispatch(stack, "e2e_fails") == {"started": 1}
    ended(queue_conn, "e2e_fails", "failed")
    queue_conn.execute("UPDATE messages.message SET visible_at = clock_timestamp() WHERE queue_name = 'e2e_fails'")
    assert dispatch(stack, "e2e_fails") == {"started": 1}
    ended(queue_conn, "e2e_fails", "failed", "failed")
    assert account(queue_conn, "e2e_fails") == {"failed": 1}
    last = f"pgqueue__e2e_fails__{id_}__2"
    details = queue_conn.execute("SELECT details FROM messages.message_archive WHERE id = %s", [id_]).fetchone()
    assert details is not None
    assert details[0].startswith("DAG e2e_handle failed: work: RuntimeError: as ")
    flag.unlink()
    # Airflow tells its listeners before it commits how a run ended, and what is cleared in between stays as it is.
    wait_for_run(stack, "e2e_handle", last)
    stack.client.clear("e2e_handle", last, "work")
    ended(queue_conn, "e2e_fails", "failed", "success")
    assert run(queue_conn, verbs.dead_ids("e2e_fails")) == []


def test_a_failed_run_that_is_cleared_after_a_later_one_finished_fails_and_names_it(
    stack: Stack, queue_conn: Connection, tmp_path: Path
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    (id_,) = create(queue_conn, "e2e_winner", [{"fail_while": str(flag)}])
    old, new = (f"pgqueue__e2e_winner__{id_}__{attempt}" for attempt in (1, 2))
    dispatch(stack, "e2e_winner")
    ended(queue_conn, "e2e_winner", "failed")
    flag.unlink()
    queue_conn.execute("UPDATE messages.message SET visible_at = clock_timestamp() WHERE queue_name = 'e2e_winner'")
    dispatch(stack, "e2e_winner")
    ended(queue_conn, "e2e_winner", "failed", "success")
    wait_for_run(stack, "e2e_handle", old)
    stack.client.clear("e2e_handle", old, "work")
    assert wait_for_run(stack, "e2e_handle", old) == "failed"
    said = stack.client.log("e2e_handle", old, "work", attempt=2)
    assert f"message {id_} was finished by 'e2e_handle/{new}'" in said
    assert dispatches(queue_conn, "e2e_winner") == [(old, "failed"), (new, "success")]


def test_what_dies_of_one_error_has_one_cause_and_the_error_with_it(
    stack: Stack, queue_conn: Connection, tmp_path: Path
) -> None:
    flags = [tmp_path / name for name in ("apple", "pear")]
    for flag in flags:
        flag.touch()
    bodies = [{"fail_while": str(flag)} for flag in flags]
    ids = create(queue_conn, "e2e_causes", bodies, max_attempts=1)
    assert dispatch(stack, "e2e_causes") == {"started": 2}
    ended(queue_conn, "e2e_causes", "failed", "failed")
    (cause,) = run(queue_conn, verbs.dead_causes("e2e_causes"))
    assert (cause.waiting, cause.example) == (2, "RuntimeError")
    query = "SELECT failure, handled_by FROM messages.message_archive WHERE id = %s"
    failure, handled_by = queue_conn.execute(query, [ids[1]]).fetchone() or ({}, None)
    run_id = f"pgqueue__e2e_causes__{ids[1]}__1"
    assert handled_by == f"e2e_handle/{run_id}"
    assert failure["message"] == f"as {flags[1]} told"
    assert 'raise RuntimeError(f"as' in failure["traceback"]
    assert failure["task_id"] == "work"
    assert f"/dags/e2e_handle/runs/{run_id}/tasks/work" in failure["log_url"]


def test_a_run_that_was_deleted_is_delivered_again(stack: Stack, queue_conn: Connection, tmp_path: Path) -> None:
    (id_,) = create(queue_conn, "e2e_deleted", [{}])
    (one,) = run(queue_conn, verbs.dispatch_messages("e2e_deleted", "e2e_handle"))
    run(queue_conn, verbs.start_dispatch(one.dispatch_id))  # and Airflow knows nothing of it
    assert dispatch(stack, "e2e_deleted") == {"lost": 1, "started": 1}
    ended(queue_conn, "e2e_deleted", "lost", "success")
    assert dispatches(queue_conn, "e2e_deleted")[1][0] == f"pgqueue__e2e_deleted__{id_}__2"


def test_a_reconciliation_finds_what_the_listener_missed(stack: Stack, queue_conn: Connection) -> None:
    (id_,) = create(queue_conn, "e2e_missed", [{}])
    run_id = f"pgqueue__e2e_missed__{id_}__1"
    stack.client.wait_for_dag("e2e_handle")
    stack.client.wait_for_dag("e2e_reconcile")
    # It has no messages yet, and the listener finds nothing to end.
    stack.client.trigger("e2e_handle", dag_run_id=run_id)
    assert wait_for_run(stack, "e2e_handle", run_id) == "failed"
    (one,) = run(queue_conn, verbs.dispatch_messages("e2e_missed", "e2e_handle"))
    assert one.run_id == run_id
    run_id = stack.client.trigger("e2e_reconcile")
    assert wait_for_run(stack, "e2e_reconcile", run_id) == "success"
    assert stack.client.xcom("e2e_reconcile", run_id, "reconcile")["failed"] == 1
    ended(queue_conn, "e2e_missed", "failed")


@pytest.mark.airflow_since("3.2")
def test_a_paused_dag_gets_no_messages(stack: Stack, queue_conn: Connection) -> None:
    create(queue_conn, "e2e_asleep", [{}])
    stack.client.wait_for_dag("e2e_handle_mapped")
    stack.client.pause("e2e_handle_mapped")
    try:
        assert dispatch(stack, "e2e_asleep", "e2e_handle_mapped") == {}
        assert dispatches(queue_conn, "e2e_asleep") == []
    finally:
        stack.client.pause("e2e_handle_mapped", False)


def test_a_dag_that_does_not_exist_fails_the_dispatcher_and_costs_no_attempt(
    stack: Stack, queue_conn: Connection
) -> None:
    create(queue_conn, "e2e_nowhere", [{}])
    stack.client.wait_for_dag("e2e_dispatch")
    run_id = stack.client.trigger("e2e_dispatch", conf={"queue": "e2e_nowhere", "dag": "e2e_no_such_dag"})

    def tried() -> bool:
        tasks = stack.client.task_instances("e2e_dispatch", run_id)
        return any(task["try_number"] > 1 or task["state"] in ("failed", "up_for_retry") for task in tasks)

    until(tried, timeout=PATIENCE, what="a try that failed")

    def said() -> str:
        return stack.client.log("e2e_dispatch", run_id, "dispatch")

    # The state of a try that is followed by another is told before the last lines of its log are written.
    until(lambda: "e2e_no_such_dag" in said(), what="the name of the DAG in the log", tell=said)
    assert "trigger_dag_id" in said()
    attempts = queue_conn.execute("SELECT attempts FROM messages.message WHERE queue_name = 'e2e_nowhere'").fetchone()
    assert attempts == (0,)


def test_a_waiting_dispatcher_keeps_to_max_open(stack: Stack, queue_conn: Connection) -> None:
    run(queue_conn, verbs.create_queue("e2e_few"))
    stack.client.wait_for_dag("e2e_dispatch_waiting")
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, len(run(queue_conn, verbs.open_dispatches("e2e_few"))))
        return account(queue_conn, "e2e_few") == {"success": 3}

    with unpaused(stack, "e2e_dispatch_waiting"):
        run(queue_conn, verbs.publish_batch("e2e_few", [{}] * 3))  # one more than may be open at once
        until(
            finished,
            timeout=PATIENCE,
            what="messages that were finished",
            tell=lambda: states(stack, queue_conn, "e2e_few"),
            pause=0.02,
        )
    assert most <= 2
    assert {result for _, result in dispatches(queue_conn, "e2e_few")} == {"success"}


def test_the_example_packs_orders(stack: Stack, queue_conn: Connection) -> None:
    for dag_id in ("pgqueue_dispatch", "pgqueue_pack_order"):
        stack.client.wait_for_dag(dag_id)
    run(queue_conn, verbs.publish("packing", {"order_id": 7}))
    with unpaused(stack, "pgqueue_dispatch"):
        ended(queue_conn, "packing", "success")
    assert account(queue_conn, "packing") == {"success": 1}
