"""What is done to queues by hand is written down, once, with the login and the user for whom it was done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, PermissionDenied, QueueNotFound, run, verbs
from tests.core.roles.test_roles import Login
from tests.waiting import PATIENCE, until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


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


def test_each_of_these_verbs_writes_one_entry_whether_somebody_is_named_or_not(
    conn: Connection, orders: str, login: Login
) -> None:
    login("bob")
    calls: list[tuple[verbs.Statement[Any], dict[str, Any], tuple[Any, ...]]] = [
        (verbs.purge_queue("orders"), {}, ("purge_queue", {}, 3)),
        (verbs.drop_queue("orders", force=True), {"force": True}, ("drop_queue", {"force": True}, 3)),
        (verbs.alter_queue("orders", max_attempts=7), {"max_attempts": 7}, ("alter_queue", {"max_attempts": 7}, None)),
        (verbs.pause_queue("orders"), {}, ("pause_queue", {"paused": True}, None)),
        (
            verbs.grant_queue("orders", "bob", "consume"),
            {"role_name": "bob", "privilege": "consume"},
            ("grant_queue", {"role_name": "bob", "privilege": "consume"}, 1),
        ),
        (verbs.revoke_queue("orders", "bob"), {"role_name": "bob"}, ("revoke_queue", {"role_name": "bob"}, 0)),
        (
            verbs.requeue_dead(verbs.DeadFilter("orders", results=["failed"])),
            {"results": ["failed"]},
            ("requeue_dead", {"results": ["failed"]}, 2),
        ),
        (verbs.dismiss_dead("orders", "old"), {"reason": "old"}, ("dismiss_dead", {"reason": "old"}, 2)),
        (verbs.bind_topic("orders", "a.#"), {"pattern": "a.#"}, ("bind_topic", {"pattern": "a.#"}, None)),
    ]
    for verb, arguments, entry in calls:
        with conn.transaction(force_rollback=True):
            run(conn, verb)
            assert entries(conn) == [(None, *entry)]
        with conn.transaction(force_rollback=True):
            run(conn, verbs.audited("ann", verb.function, {"queue_name": orders} | arguments))
            assert entries(conn) == [("ann", *entry)]


def test_a_policy_that_stays_as_it_is_is_no_entry(conn: Connection, orders: str) -> None:
    run(conn, verbs.alter_queue(orders, max_attempts=1))
    run(conn, verbs.resume_queue(orders))
    assert entries(conn) == []
    run(conn, verbs.audited("ann", "resume_queue", {"queue_name": orders}))
    assert entries(conn) == [("ann", "resume_queue", {}, None)]


def test_remedies_releases_and_test_messages_are_entries_without_their_bodies(conn: Connection, orders: str) -> None:
    ids = run(conn, verbs.dead_ids(orders))
    done = run(conn, verbs.audited("ann", "requeue_dead", {"queue_name": orders, "ids": ids[:1], "results": None}))
    assert [row["id"] for row in done] == ids[:1]
    reason = {"queue_name": orders, "ids": ids, "reason": "a test"}
    assert run(conn, verbs.audited("ann", "dismiss_dead", reason)) == ids[1:]
    (held,) = run(conn, verbs.lease(orders))
    assert run(conn, verbs.audited("ann", "release_messages", {"queue_name": orders, "ids": [held.id]})) == [held.id]
    run(conn, verbs.audited("ann", "publish", {"queue_name": orders, "message": {"secret": 1}, "reference": "test"}))
    found = entries(conn)
    assert [(user, action, affected) for user, action, _, affected in found] == [
        ("ann", "requeue_dead", 1),
        ("ann", "dismiss_dead", 1),
        ("ann", "release_messages", 1),
        ("ann", "publish", 1),
    ]
    assert "secret" not in str(found)
    assert found[3][2] == {"reference": "test"}
    assert run(conn, verbs.remedies(ids)) == {ids[0]: ("requeued", "ann"), ids[1]: ("dismissed", "ann")}


def test_what_cannot_be_called_is_refused_and_leaves_no_entry(conn: Connection, orders: str) -> None:
    calls: list[tuple[str, str, dict[str, Any], type[Exception]]] = [
        ("", "purge_queue", {"queue_name": "orders"}, InvalidArgument),
        ("x" * 251, "purge_queue", {"queue_name": "orders"}, InvalidArgument),
        ("ann", "delete_queue", {"queue_name": "orders"}, InvalidArgument),
        ("ann", "status", {"queue_name": "orders"}, InvalidArgument),
        ("ann", "purge_queue", {"queue": "orders"}, InvalidArgument),
        ("ann", "purge_queue", {}, InvalidArgument),
        ("ann", "alter_queue", {"queue_name": "orders", "lease_for": "soon"}, InvalidArgument),
        ("ann", "alter_queue", {"queue_name": "orders", "max_attempts": "1); SELECT 1"}, InvalidArgument),
        ("ann", "purge_queue", {"queue_name": "nope'); DROP TABLE messages.message --"}, QueueNotFound),
    ]
    for user, verb, arguments, error in calls:
        with pytest.raises(error):
            run(conn, verbs.audited(user, verb, arguments))
    assert entries(conn) == []


def test_an_audited_verb_needs_the_same_privilege_and_names_the_login(
    conn: Connection, orders: str, login: Login
) -> None:
    packer = login("packer", "messages_consumer")
    with pytest.raises(PermissionDenied):
        run(packer, verbs.audited("ann", "purge_queue", {"queue_name": orders}))
    with pytest.raises(PermissionDenied):
        run(packer, verbs.audited("ann", "publish", {"queue_name": orders, "message": 1}))
    run(conn, verbs.create_queue("bills"))
    run(conn, verbs.grant_queue(orders, "packer", "consume"))
    conn.execute("DELETE FROM messages.audit")
    with pytest.raises(PermissionDenied):
        run(packer, verbs.audited("ann", "requeue_dead", {"queue_name": "bills"}))
    run(packer, verbs.audited("ann", "requeue_dead", {"queue_name": orders}))
    assert conn.execute("SELECT login, acting_user FROM messages.audit").fetchall() == [("packer", "ann")]


def test_set_role_limits_an_audited_verb_as_it_limits_the_verb(conn: Connection, orders: str, login: Login) -> None:
    admin = login("chief", "messages_admin", "messages_consumer")
    admin.execute("SET ROLE messages_consumer")
    with pytest.raises(PermissionDenied):
        run(admin, verbs.audited("ann", "purge_queue", {"queue_name": orders}))


def test_a_team_reads_the_entries_of_its_queues_alone(conn: Connection, orders: str, login: Login) -> None:
    run(conn, verbs.purge_queue(orders))
    run(conn, verbs.create_queue("bills"))
    bob = login("bob")
    run(conn, verbs.grant_queue(orders, "bob", "observe"))
    assert [row["action"] for row in run(bob, verbs.audit_log())] == ["grant_queue", "purge_queue"]
    assert [row["action"] for row in run(conn, verbs.audit_log("bills"))] == ["create_queue"]
    assert [row["action"] for row in run(conn, verbs.audit_log(max_entries=1))] == ["grant_queue"]


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
    asked = verbs.audited("ann", "publish", {"queue_name": orders, "message": 1}, request=uuid4())
    with psycopg.connect(dsn) as first, ThreadPoolExecutor(1) as pool:
        assert run(first, asked) is not None
        second = pool.submit(run, conn, asked)
        until(
            lambda: (
                first.execute("SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory'").fetchone() is not None
            )
        )
        assert not second.done()
        first.commit()
        assert second.result(PATIENCE) is None
    assert run(conn, asked) is None
    assert [(user, action, affected) for user, action, _, affected in entries(conn)] == [("ann", "publish", 1)]


def test_a_request_that_failed_can_be_done_later(conn: Connection, orders: str) -> None:
    request = uuid4()
    with pytest.raises(QueueNotFound):
        run(conn, verbs.audited("ann", "purge_queue", {"queue_name": "bills"}, request=request))
    assert run(conn, verbs.audited("ann", "purge_queue", {"queue_name": orders}, request=request)) == [3]
