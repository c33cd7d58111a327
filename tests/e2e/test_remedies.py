"""What becomes of dead messages, on a real Airflow: a run for each cause."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.waiting import until
from tools.airflow import Stack

pytestmark = pytest.mark.airflow
Connection = psycopg.Connection[Any]


def die(conn: Connection, queue_name: str, number: int, details: str) -> list[int]:
    """Publish messages, let them die of one cause, and return their ids."""
    ids = run(
        conn, verbs.publish_batch(queue_name, [{"order_id": n, "secret": "plum-in-a-body"} for n in range(number)])
    )
    taken = run(conn, verbs.lease(queue_name, max_messages=number))
    run(conn, verbs.archive(taken[0].lock_token, ids, result="failed", details=details))
    return ids


def runs(conn: Connection, queue_name: str) -> list[tuple[str, str | None]]:
    return conn.execute(
        "SELECT run_id, result FROM messages.dispatch WHERE queue_name = %s AND fingerprint IS NOT NULL"
        " ORDER BY dispatch_id",
        [queue_name],
    ).fetchall()


def dispatch(stack: Stack) -> dict[str, int]:
    for dag_id in ("e2e_remedy_dispatch", "e2e_remedy"):
        stack.client.wait_for_dag(dag_id)
    run_id = stack.client.trigger("e2e_remedy_dispatch")
    assert stack.client.wait_for_run("e2e_remedy_dispatch", run_id, timeout=120) == "success"
    found: dict[str, int] = stack.client.xcom("e2e_remedy_dispatch", run_id, "dispatch")
    return found


def test_each_cause_has_a_run_again_when_it_is_lost_or_failed_and_each_message_one_remedy(
    stack: Stack, queue_conn: Connection
) -> None:
    run(queue_conn, verbs.create_queue("e2e_dead"))
    ids = die(queue_conn, "e2e_dead", 3, "disk full") + die(queue_conn, "e2e_dead", 2, "fail once")
    # A dispatcher that died before it started the runs; and a run that Airflow knew and somebody deleted.
    lost, other = run(queue_conn, verbs.dispatch_dead("e2e_dead", "e2e_remedy"))
    run(queue_conn, verbs.start_dispatch(lost.dispatch_id))
    done = dispatch(stack)
    assert (done["lost"], done["started"]) == (1, 2)

    def ended(number: int) -> list[str | None]:
        until(
            lambda: [result for _, result in runs(queue_conn, "e2e_dead") if result][number - 1 :],
            timeout=120,
            what=f"{number} runs that ended",
        )
        return [result for _, result in runs(queue_conn, "e2e_dead")]

    assert sorted(map(str, ended(3))) == ["failed", "lost", "success"]
    assert dispatch(stack)["started"] == 1
    assert sorted(map(str, ended(4))) == ["failed", "lost", "success", "success"]
    assert dispatch(stack) == {}
    remedied = queue_conn.execute(
        "SELECT id, remedy FROM messages.message_archive WHERE queue_name = 'e2e_dead' ORDER BY id"
    ).fetchall()
    assert remedied == [(id_, "requeued") for id_ in ids]
    copies = queue_conn.execute("SELECT requeued_from FROM messages.message WHERE queue_name = 'e2e_dead'").fetchall()
    assert sorted(id_ for (id_,) in copies) == ids
    conf = stack.client.run("e2e_remedy", other.run_id)["conf"]["pgqueue"]
    assert (conf["ids"], conf["fingerprint"]) == (other.ids, other.fingerprint)
    assert "plum" not in str(conf)
