"""What an idle transaction has touched holds up nothing else; calls that cross in two transactions end with InUse."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.message import Dispatch
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def dispatches(conn: Connection, number: int = 2) -> list[Dispatch]:
    run(conn, verbs.publish_batch("orders", range(number)))
    return run(conn, verbs.dispatch_messages("orders", "handle", lease_for=timedelta(hours=1)))


def tell(one: Dispatch) -> str:
    return f"'{one.dag_id}', '{one.run_id}'"


# Each with what the transaction did that then stands idle, of the first dispatch; {ids} are its messages.
IDLE = {
    "asked": "SELECT messages.dispatched_messages({run})",
    "started": "SELECT messages.start_dispatch({dispatch})",
    "extended": "SELECT messages.extend_dispatches('{{{dispatch}}}')",
    "archived": "SELECT messages.archive('{token}', '{{{ids}}}')",
    "ended": "SELECT messages.end_dispatch({run}, 'success')",
}


@pytest.mark.parametrize("did", IDLE)
def test_an_idle_transaction_keeps_no_other_dispatch_from_being_renewed(
    conn: Connection, connect: Connect, queue: Queue, did: str
) -> None:
    queue("orders")
    touched, other = dispatches(conn)
    token = run(conn, verbs.dispatched_messages(touched.dag_id, touched.run_id))[0].lock_token
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() + '1 minute'")
    holder = connect(autocommit=False)
    statement = IDLE[did].format(run=tell(touched), dispatch=touched.dispatch_id, token=token, ids=touched.ids[0])
    holder.execute(statement.encode())
    conn.execute("SET statement_timeout = '10s'")
    both = [touched.dispatch_id, other.dispatch_id]
    assert run(conn, verbs.extend_dispatches(both)) == both
    assert run(conn, verbs.start_dispatch(other.dispatch_id))
    run(conn, verbs.start_dispatch(touched.dispatch_id))
    left = conn.execute(
        "SELECT lock_expires_at - clock_timestamp() > '59 minutes' FROM messages.message WHERE id = %s", other.ids
    ).fetchone()
    assert left == (True,)


TWO_QUEUES = "SELECT messages.create_queue('orders1'), messages.create_queue('orders2')"
# Each with what is there before, and a call for a name, 1 or 2.
CROSSED = {
    "dispatch_messages": (TWO_QUEUES, "SELECT messages.dispatch_messages('orders{}', 'handle')"),
    "stage_publish": ("", "SELECT messages.stage_publish('{}', 'orders')"),
    "stage_publish again": (
        "SELECT messages.stage_publish('1', 'orders'), messages.stage_publish('2', 'orders')",
        "SELECT messages.stage_publish('{}', 'orders')",
    ),
    "begin_run": ("", "SELECT messages.begin_run('{}', 'drain')"),
    "publish_staged": ("", "SELECT messages.publish_staged('none', '{}', '[]', 'orders')"),
    "finish_run": (
        "SELECT messages.begin_run('1', 'drain'), messages.begin_run('2', 'drain')",
        "SELECT messages.finish_run('{}', '{{}}')",
    ),
    "end_dispatch": (
        "SELECT messages.dispatch_messages('orders', 'handle', max_open => 2)",
        "SELECT messages.end_dispatch('handle', run_id, 'success') FROM messages.dispatch WHERE dispatch_id = {}",
    ),
}


@pytest.mark.parametrize("case", CROSSED)
def test_calls_that_cross_end_with_in_use_for_one_of_two(
    conn: Connection, connect: Connect, queue: Queue, case: str
) -> None:
    """Only the end of a transaction tells the result of its call, so the other waits for it."""
    before, call = CROSSED[case]
    run(conn, verbs.publish_batch(queue("orders"), range(4)))
    if before:
        conn.execute(before.encode())
    one, two = (connect(autocommit=False, options="-c deadlock_timeout=50ms") for _ in range(2))
    one.execute(call.format(1).encode())
    two.execute(call.format(2).encode())

    def cross(session: Connection, name: int) -> str | None:
        try:
            session.execute(call.format(name).encode())
            session.commit()
        except psycopg.Error as error:
            session.rollback()
            return error.sqlstate
        return None

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cross, one, 2)
        until(lambda: conn.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
        states = {first.result, pool.submit(cross, two, 1).result}
        assert sorted(state() or "" for state in states) == ["", "PQ016"]
