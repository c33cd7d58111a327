"""What a DAG, a run or a task has to do with the queues."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.plugins import page
from tests.conftest import Connection
from tests.web.conftest import Browse

Queue = Callable[..., str]


def ids_on(text: str) -> set[int]:
    return {int(id_) for id_ in re.findall(r'href="[^"]*/messages/(\d+)"', text)}


def tab(destination: str, *, encoded: bool = True, **names: str) -> str:
    """Return the address that Airflow makes of a tab: 3.1 leaves the names as they are, later ones encode them."""
    (view,) = [view for view in page.views() if view["destination"] == destination]
    href: str = view["href"]
    for name, value in names.items():
        href = href.replace(f"{{{name}}}", quote(value, safe="") if encoded else value)
    return href.removeprefix("/pgqueue")


@pytest.mark.parametrize("run_id", ["manual__2026-06-08T04:00:00+00:00", "by/hand", "50% é"])
def test_a_run_shows_the_messages_that_it_has_and_those_that_its_tasks_published(
    browse: Browse, conn: Connection, queue: Queue, run_id: str
) -> None:
    had = run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    (one, *_) = run(conn, verbs.dispatch_messages("orders", "pack", batch_size=2))
    conn.execute("UPDATE messages.dispatch SET run_id = %s WHERE dispatch_id = %s", [run_id, one.dispatch_id])
    names = [
        f"pack/{run_id}/a/-1",
        f"pack/{run_id}/b/3",
        f"pack/{run_id}0/a/-1",
        f"pack/{run_id}",
        f"other/{run_id}/a/-1",
    ]
    own = run(conn, verbs.publish_batch("orders", names, references=names))
    client, task = browse(), {"DAG_ID": "pack", "RUN_ID": run_id, "TASK_ID": "b"}
    for encoded in (True, False):
        of_run = tab("dag_run", encoded=encoded, DAG_ID="pack", RUN_ID=run_id)
        assert ids_on(client.get(of_run).text) == {*had[:2], *own[:2]}
        mapped = tab("task_instance", encoded=encoded, MAP_INDEX="3", **task)
        assert ids_on(client.get(mapped).text) == {*had[:2], own[1]}
        # Airflow leaves the placeholder of what is not mapped.
        plain = tab("task_instance", encoded=encoded, **task | {"TASK_ID": "a"})
        assert ids_on(client.get(plain).text) == {*had[:2], own[0]}


def test_a_dag_shows_its_runs_and_how_they_ended(browse: Browse, conn: Connection, queue: Queue) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders", max_attempts=1), [1, 2]))
    failed, _ = run(conn, verbs.dispatch_messages("orders", "pack"))
    run(conn, verbs.end_dispatch("pack", failed.run_id, "failed", details="run <b> failed: work"))
    text = browse().get(tab("dag", DAG_ID="pack")).text
    assert ids_on(text) == set(ids)
    assert "run &lt;b&gt; failed: work" not in text  # it may quote a body
    assert "run &lt;b&gt; failed: work" in browse(may_act=True).get(tab("dag", DAG_ID="pack")).text
    assert text.index("unstarted") < text.index(">failed<")
    assert "No dispatcher handed" in browse().get(tab("dag", DAG_ID="nobody")).text


def test_what_a_run_published_is_found_by_an_index_by_a_login_that_sees_one_team(
    conn: Connection, queue: Queue
) -> None:
    queue("orders")
    conn.execute(
        "SELECT messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, 20000) n),"
        " \"references\" => (SELECT array_agg(format('dag/%s/a/-1', n)) FROM generate_series(1, 20000) n))"
    )
    conn.execute("ANALYZE messages.message")
    conn.execute("CREATE ROLE page_run_observer IN ROLE messages_observer")
    try:
        conn.execute("SET ROLE page_run_observer")
        ask = b"EXPLAIN (COSTS OFF) " + query("published_by")
        plan = conn.execute(ask, {"first": "dag/7/", "beyond": "dag/70"}).fetchall()
    finally:
        conn.execute("RESET ROLE")
        conn.execute("DROP ROLE page_run_observer")
    text = "\n".join(line for (line,) in plan)
    assert "message_reference_idx" in text
    assert "Seq Scan on message " not in text
    assert re.search(r"Index Cond: \(+reference ~>=~", text)
