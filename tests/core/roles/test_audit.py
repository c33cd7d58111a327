"""What is done to queues by hand is written down, once, with the login and the user for whom it was done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, PermissionDenied, QueueNotFound, run, verbs
from tests.core.roles.test_roles import Login
from tests.waiting import PATIENCE, until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
T = TypeVar("T")


@pytest.fixture
def orders(conn: Connection, queue: Queue) -> str:
    """The queue orders with two dead messages and three that wait, and nothing in the audit."""
    queue("orders", max_attempts=1)
    run(conn, verbs.publish_batch("orders", [{"secret": n} for n in range(5)]))
    leased = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(leased[0].lock_token, [one.id for one in leased], result="failed", details="no stock"))
    conn.execute("DELETE FROM messages.audit")
    return "orders"


def entries(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT acting_user, action, arguments, affected FROM messages.audit ORDER BY audit_id"
    ).fetchall()


def run_for(conn: Connection, user: str, verb: verbs.Statement[T], *, request: UUID | None = None) -> T | None:
    """Run a verb for a user, in one transaction; None if the request was done before."""
    with conn.transaction():
        return run(conn, verb) if run(conn, verbs.act_for(user, request)) else None


def test_each_of_these_verbs_writes_one_entry_whether_somebody_is_named_or_not(
    conn: Connection, orders: str, login: Login
) -> None:
    login("bob")
    calls: list[tuple[verbs.Statement[Any], tuple[Any, ...]]] = [
        (verbs.purge_queue("orders"), ("purge_queue", {}, 3)),
        (verbs.drop_queue("orders", force=True), ("drop_queue", {"force": True}, 3)),
        (verbs.alter_queue("orders", max_attempts=7), ("alter_queue", {"max_attempts": 7}, None)),
        (verbs.pause_queue("orders"), ("pause_queue", {"paused": True}, None)),
        (
            verbs.grant_queue("orders", "bob", "consume"),
            ("grant_queue", {"role_name": "bob", "privilege": "consume"}, 1),
        ),
        (verbs.revoke_queue("orders", "bob"), ("revoke_queue", {"role_name": "bob"}, 0)),
        (
            verbs.requeue_dead(verbs.DeadFilter("orders", results=["failed"])),
            ("requeue_dead", {"results": ["failed"]}, 2),
        ),
        (verbs.dismiss_dead("orders", "old"), ("dismiss_dead", {"reason": "old"}, 2)),
        (verbs.bind_topic("orders", "a.#"), ("bind_topic", {"pattern": "a.#"}, None)),
        (verbs.publish_test("orders", {"secret": 1}, reference="r"), ("publish_test", {"reference": "r"}, 1)),
    ]
    for verb, entry in calls:
        with conn.transaction(force_rollback=True):
            run(conn, verb)
            assert entries(conn) == [(None, *entry)]
        with conn.transaction(force_rollback=True):
            run_for(conn, "ann", verb)
            assert entries(conn) == [("ann", *entry)]


def test_a_policy_that_stays_as_it_is_is_no_entry(conn: Connection, orders: str) -> None:
    run(conn, verbs.alter_queue(orders, max_attempts=1))
    run(conn, verbs.resume_queue(orders))
    assert entries(conn) == []


def test_a_name_holds_until_the_end_of_its_transaction(conn: Connection, orders: str) -> None:
    run_for(conn, "ann", verbs.pause_queue(orders))
    run(conn, verbs.resume_queue(orders))
    with conn.transaction():
        run(conn, verbs.act_for("bob"))
    run(conn, verbs.pause_queue(orders))
    assert [user for user, *_ in entries(conn)] == ["ann", None, None]


@pytest.mark.parametrize("user", ["", "x" * 251])
def test_a_name_has_from_1_to_250_characters(conn: Connection, orders: str, user: str) -> None:
    with pytest.raises(InvalidArgument, match="acting_user"):
        run_for(conn, user, verbs.purge_queue(orders))
    conn.execute("SELECT set_config('messages.acting_user', repeat('x', 100000), false)")
    run(conn, verbs.purge_queue(orders))
    conn.execute("RESET messages.acting_user")
    assert [len(user) for user, *_ in entries(conn)] == [250]


def test_a_verb_for_a_user_needs_the_same_privilege_and_names_the_login(
    conn: Connection, orders: str, login: Login
) -> None:
    packer = login("packer", "messages_consumer")
    for refused in (verbs.purge_queue(orders), verbs.publish_test(orders, 1)):
        with pytest.raises(PermissionDenied):
            run_for(packer, "ann", refused)
    run(conn, verbs.create_queue("bills"))
    run(conn, verbs.grant_queue(orders, "packer", "consume"))
    conn.execute("DELETE FROM messages.audit")
    with pytest.raises(PermissionDenied):
        run_for(packer, "ann", verbs.requeue_dead("bills"))
    run_for(packer, "ann", verbs.requeue_dead(orders))
    assert conn.execute("SELECT login, acting_user FROM messages.audit").fetchall() == [("packer", "ann")]


def test_a_team_reads_the_entries_of_its_queues_alone(conn: Connection, orders: str, login: Login) -> None:
    run(conn, verbs.purge_queue(orders))
    run(conn, verbs.create_queue("bills"))
    bob = login("bob")
    run(conn, verbs.grant_queue(orders, "bob", "observe"))
    assert [row["action"] for row in run(bob, verbs.audit_log())] == ["grant_queue", "purge_queue"]
    assert [row["action"] for row in run(conn, verbs.audit_log("bills"))] == ["create_queue"]
    assert [row["action"] for row in run(conn, verbs.audit_log(max_entries=1))] == ["grant_queue"]


def test_the_log_is_filtered_by_queue_user_verb_and_time(conn: Connection, orders: str) -> None:
    run_for(conn, "ann", verbs.pause_queue(orders))
    run(conn, verbs.resume_queue(orders))
    run(conn, verbs.drop_queue("default"))

    def actions(queue_name: str | None = None, **which: Any) -> list[str]:
        return [row["action"] for row in run(conn, verbs.audit_log(queue_name, **which))]

    now = datetime.now(UTC)
    assert actions() == ["drop_queue", "resume_queue", "pause_queue"]
    assert actions(orders) == ["resume_queue", "pause_queue"]
    assert actions("default") == ["drop_queue"], "a queue that is gone"
    assert actions(by_user="ann") == ["pause_queue"]
    assert actions(by_user="postgres", verb="pause_queue") == ["pause_queue"], "its login"
    assert actions(by_user="bob") == actions(until=now - timedelta(hours=1)) == []
    assert len(actions(since=now - timedelta(hours=1), max_entries=2)) == 2


def test_a_call_for_messages_is_one_entry_with_the_filter_and_not_with_thousands_of_ids(
    conn: Connection, orders: str
) -> None:
    run(conn, verbs.publish_batch(orders, list(range(25)), references=[f"r{n}" for n in range(25)]))
    held = run(conn, verbs.lease(orders, max_messages=28))
    run(conn, verbs.archive(held[0].lock_token, [one.id for one in held], result="failed", details="no stock"))
    ids = run(conn, verbs.dead_ids(orders))
    conn.execute("DELETE FROM messages.audit")
    run(conn, verbs.requeue_dead(verbs.DeadFilter(orders, reference="r3")))
    run(conn, verbs.requeue_dead(verbs.DeadFilter(orders, reference="r3")))
    run(conn, verbs.dismiss_dead(verbs.DeadFilter(orders, ids=ids), "old"))
    assert entries(conn) == [
        (None, "requeue_dead", {"reference": "r3"}, 1),
        (None, "dismiss_dead", {"reason": "old"}, len(ids) - 1),
    ]


def test_an_ended_lease_is_an_entry_and_one_that_nobody_held_is_none(conn: Connection, orders: str) -> None:
    held = run(conn, verbs.lease(orders, max_messages=2))
    ids = [one.id for one in held]
    for _ in range(2):
        run(conn, verbs.release_messages(orders, ids))
    assert entries(conn) == [(None, "release_messages", {"ids": ids}, 2)]


def test_bindings_are_entries_when_they_change(conn: Connection, orders: str) -> None:
    for verb_of_topics in (verbs.bind_topic, verbs.bind_topic, verbs.unbind_topic, verbs.unbind_topic):
        run(conn, verb_of_topics(orders, "a.*"))
    assert [row[1] for row in entries(conn)] == ["bind_topic", "unbind_topic"]
    assert conn.execute("SELECT DISTINCT queue_name FROM messages.audit").fetchall() == [(orders,)]


def test_a_request_is_done_once_also_of_two_at_the_same_time(conn: Connection, dsn: str, orders: str) -> None:
    asked, request = verbs.publish_test(orders, 1), uuid4()
    with psycopg.connect(dsn) as first, ThreadPoolExecutor(1) as pool:
        with first.transaction():
            assert run_for(first, "ann", asked, request=request) is not None
            second = pool.submit(run_for, conn, "ann", asked, request=request)
            waits = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            until(lambda: first.execute(waits).rowcount)
            assert not second.done()
        assert second.result(PATIENCE) is None
    assert run_for(conn, "ann", asked, request=request) is None
    assert entries(conn) == [("ann", "publish_test", {}, 1)]


def test_a_request_that_failed_can_be_done_later(conn: Connection, orders: str) -> None:
    request = uuid4()
    with pytest.raises(QueueNotFound):
        run_for(conn, "ann", verbs.purge_queue("bills"), request=request)
    assert run_for(conn, "ann", verbs.purge_queue(orders), request=request) == 3
