"""A refused privilege names the one group role or grant that is missing, and with it the call passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, PermissionDenied, Repair, migrate, run, verbs
from airflow_provider_pgqueue.core.client import run_async
from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.consumer.loop import NEEDED
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.installation import leave_out_roles
from airflow_provider_pgqueue.core.verbs import Statement
from tests.core.roles.test_roles import Login, bare
from tools.postgres import Cluster

__all__ = ["bare"]

Connection = psycopg.Connection[Any]

GROUPS = ("nothing", "publisher", "consumer", "observer", "maintenance", "reader", "pipeline")
CALLS: dict[str, Callable[[], Statement[Any]]] = {
    "publisher": lambda: verbs.publish("orders", 1),
    "consumer": lambda: verbs.lease("orders"),
    "observer": lambda: verbs.status("orders"),
    "maintenance": lambda: verbs.maintain(),
    "reader": lambda: verbs.archive_log_end(),
    "pipeline": lambda: verbs.run_holder("nightly"),
    "admin": lambda: verbs.pause_queue("orders"),
}


@pytest.fixture(autouse=True)
def orders(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders"))


def refusal(session: Connection, statement: Statement[Any]) -> str | None:
    """Return the fix of a refused call; None if it passes, or is refused for another reason."""
    try:
        check_version(session)
        run(session, statement)
    except PermissionDenied as error:
        return error.fix or "no fix"
    except PgQueueError:
        return None
    return None


@pytest.mark.parametrize("group", GROUPS)
def test_the_role_that_is_named_is_the_one_that_is_missing(conn: Connection, login: Login, group: str) -> None:
    for wants, call in CALLS.items():
        shop = login("shop", *([] if group == "nothing" else [f"messages_{group}"]))
        fix = refusal(shop, call())
        if fix is not None:
            assert fix.startswith("GRANT messages_"), fix
            named = fix.removeprefix("GRANT ").removesuffix(" TO shop")
            assert conn.execute("SELECT pg_has_role('shop', %s, 'MEMBER')", [named]).fetchone() == (False,), fix
            assert named == f"messages_{wants}"
            conn.execute(fix.encode())
        assert refusal(shop, call()) is None, wants
        for granted in CALLS:
            if granted != group:
                conn.execute(f"REVOKE messages_{granted} FROM shop".encode())


def test_a_call_in_a_transaction_and_an_async_one_name_the_same_role(conn: Connection, login: Login, dsn: str) -> None:
    shop = login("shop", "messages_publisher")
    with pytest.raises(PermissionDenied) as refused, shop.transaction():
        run(shop, verbs.lease("orders"))
    assert refused.value.fix == "GRANT messages_consumer TO shop"

    async def lease() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, user="shop", autocommit=True) as session:
            await run_async(session, verbs.lease("orders"))

    with pytest.raises(PermissionDenied) as refused:
        asyncio.run(lease())
    assert refused.value.fix == "GRANT messages_consumer TO shop"


def test_a_login_that_is_limited_to_its_queues_is_told_the_grant_of_the_queue(conn: Connection, login: Login) -> None:
    team = login("team")
    run(conn, verbs.grant_queue("orders", "team", "observe"))
    for call, privilege in ((CALLS["publisher"], "publish"), (CALLS["consumer"], "consume")):
        fix = refusal(team, call())
        assert fix == f"SELECT messages.grant_queue('orders', 'team', '{privilege}')"
        conn.execute(fix.encode())
        assert refusal(team, call()) is None
    run(conn, verbs.create_queue("bills"))
    assert refusal(team, verbs.publish("bills", 1)) == (
        "An admin can grant it: SELECT messages.grant_queue('bills', 'team', 'publish')"
    )


def test_a_login_that_has_the_role_and_does_not_inherit_it_is_told_so(conn: Connection, login: Login) -> None:
    shop = login("shop", "messages_publisher", options="NOINHERIT")
    fix = refusal(shop, verbs.publish("orders", 1))
    assert "INHERIT" in fix
    conn.execute(fix.encode())
    assert refusal(shop, verbs.publish("orders", 1)) is None


def test_a_grant_by_hand_of_one_function_is_enough_to_call_it(conn: Connection, login: Login) -> None:
    shop = login("shop")
    conn.execute("GRANT USAGE ON SCHEMA messages TO shop; GRANT EXECUTE ON FUNCTION messages.publish TO shop")
    assert refusal(shop, verbs.publish("orders", 1)) is None
    assert refusal(shop, verbs.lease("orders")) == "GRANT messages_consumer TO shop"


@pytest.mark.parametrize("missing", sorted({*NEEDED} - {"lease"}))
def test_a_consumer_that_lacks_one_grant_is_told_before_it_leases(conn: Connection, login: Login, missing: str) -> None:
    given = {*NEEDED} - {missing}
    shop = login("shop")
    functions = ", ".join(f"messages.{name}" for name in given)
    conn.execute(f"GRANT USAGE ON SCHEMA messages TO shop; GRANT EXECUTE ON FUNCTION {functions} TO shop".encode())
    run(conn, verbs.publish("orders", 1))
    with pytest.raises(PermissionDenied, match=f"^permission denied for function {missing}. GRANT messages_consumer"):
        Consumer(queue_name="orders", handle=lambda message: None).drain(shop)
    assert conn.execute("SELECT attempts, lock_token FROM messages.message").fetchall() == [(0, None)]
    conn.execute(f"GRANT EXECUTE ON FUNCTION messages.{missing} TO shop".encode())
    assert Consumer(queue_name="orders", handle=lambda message: None).drain(shop) == {"success": 1}


def test_a_repair_that_lacks_one_grant_is_told_before_it_leases(conn: Connection, login: Login) -> None:
    names = "dead_ids, lease_dead, extend_dead, release_dead, resolutions, count_resolutions, requeued_results"
    functions = ", ".join(f"messages.{name}" for name in names.split(", "))
    shop = login("shop")
    conn.execute(f"GRANT USAGE ON SCHEMA messages TO shop; GRANT EXECUTE ON FUNCTION {functions} TO shop".encode())
    with pytest.raises(PermissionDenied, match=r"^permission denied for function requeue. GRANT messages_consumer"):
        Repair(which=verbs.DeadFilter("orders")).run(shop)


def test_what_no_group_may_names_no_group(conn: Connection, login: Login) -> None:
    shop = login("shop", "messages_admin")
    with pytest.raises(PermissionDenied) as refused:
        run(shop, Statement("check_queue", {"queue_name": "orders", "privilege": "consume"}, list))
    assert refused.value.fix is None


def test_without_the_group_roles_the_privileges_themselves_are_named(bare: Cluster) -> None:
    bare.create_database("shops", template="template1")
    with psycopg.connect(bare.dsn("shops"), autocommit=True) as admin:
        with admin.transaction():
            leave_out_roles(admin)
            migrate(admin)
        admin.execute("CREATE ROLE shop LOGIN")
        with psycopg.connect(bare.dsn("shops", user="shop"), autocommit=True) as shop:
            fix = refusal(shop, verbs.publish("default", 1))
            assert fix == ("GRANT USAGE ON SCHEMA messages TO shop; GRANT EXECUTE ON FUNCTION messages.publish TO shop")
            admin.execute(fix.encode())
            assert refusal(shop, verbs.publish("default", 1)) is None
