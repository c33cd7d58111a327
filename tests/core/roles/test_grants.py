"""What ALTER DEFAULT PRIVILEGES of whoever installs gives to others, and what grants by hand may give."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, migrations
from airflow_provider_pgqueue.core.installation import leave_out_roles
from tests.core.maintenance.test_health import internal as internal_check
from tests.core.roles.test_roles import Login, internal
from tests.waiting import until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]

GENEROUS = """
    ALTER DEFAULT PRIVILEGES {role} GRANT ALL ON TABLES TO stranger;
    ALTER DEFAULT PRIVILEGES {role} GRANT ALL ON SEQUENCES TO stranger;
    ALTER DEFAULT PRIVILEGES {role} GRANT ALL ON FUNCTIONS TO stranger;
    ALTER DEFAULT PRIVILEGES {role} GRANT ALL ON TYPES TO stranger;
    ALTER DEFAULT PRIVILEGES {role} GRANT ALL ON SCHEMAS TO stranger;
"""
BY_HAND = """
    GRANT USAGE ON SCHEMA messages TO worker;
    GRANT SELECT, INSERT, UPDATE, DELETE ON messages.message TO worker;
    GRANT SELECT, INSERT ON messages.message_archive TO worker;
    GRANT USAGE ON SEQUENCE messages.message_id_seq TO worker;
    GRANT SELECT ON messages.message_overview TO worker;
    GRANT EXECUTE ON FUNCTION messages.publish, messages.lease TO worker;
"""
REACH = """
    SELECT place, string_agg(privilege_type, ' ' ORDER BY privilege_type)
      FROM (SELECT 'schema' AS place, a.* FROM pg_namespace CROSS JOIN aclexplode(nspacl) a WHERE nspname = 'messages'
            UNION ALL
            SELECT relname, a.* FROM pg_class CROSS JOIN aclexplode(relacl) a
             WHERE relnamespace = 'messages'::regnamespace
            UNION ALL
            SELECT relname || '.' || attname, a.* FROM pg_class c JOIN pg_attribute t ON attrelid = c.oid
             CROSS JOIN aclexplode(attacl) a WHERE relnamespace = 'messages'::regnamespace
            UNION ALL
            SELECT proname, a.* FROM pg_proc CROSS JOIN aclexplode(proacl) a
             WHERE pronamespace = 'messages'::regnamespace
            UNION ALL
            SELECT typname, a.* FROM pg_type CROSS JOIN aclexplode(typacl) a
             WHERE typnamespace = 'messages'::regnamespace) AS given
     WHERE grantee = to_regrole(%s) GROUP BY 1
"""
RESTORED = """
    GRANT USAGE, CREATE ON SCHEMA messages TO stranger;
    GRANT ALL ON ALL TABLES IN SCHEMA messages TO stranger;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA messages TO stranger;
    GRANT ALL ON ALL FUNCTIONS IN SCHEMA messages TO stranger;
"""


def reach(conn: Connection, role: str) -> dict[str, str]:
    """Return what a role was granted in the schema."""
    return dict(conn.execute(REACH.encode(), [role]).fetchall())


def finding(conn: Connection) -> tuple[Any, ...]:
    return internal_check(conn, "health_grants")


@pytest.mark.parametrize("groups", [True, False])
def test_default_privileges_of_whoever_installs_give_nothing_to_a_stranger(
    conn: Connection, login: Login, groups: bool
) -> None:
    migrations.uninstall(conn)
    stranger = login("stranger")
    conn.execute(GENEROUS.format(role="").encode())
    with conn.transaction():
        if not groups:
            leave_out_roles(conn)
        migrate(conn)
    assert reach(conn, "stranger") == {}
    conn.execute("SELECT messages.publish('default', '\"secret\"')")
    for statement in ("TABLE messages.message", "SELECT messages.record_audit('purge_queue', 'orders', '{}', 1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(statement.encode())
    # What is made later, by a call.
    conn.execute("SELECT messages.create_queue('orders'), messages.publish('orders', '1', priority => 2)")
    conn.execute("SELECT messages.partition_archive('day'), messages.stage_publish('job')")
    assert reach(conn, "stranger") == {}
    assert finding(conn) == ("ok", "no role has privileges beyond the list of grants", None)


def test_default_privileges_of_the_owner_give_nothing_of_what_is_made_later(conn: Connection, login: Login) -> None:
    login("stranger")
    conn.execute(GENEROUS.format(role="FOR ROLE messages_owner").encode())
    try:
        conn.execute("SELECT messages.create_queue('orders'), messages.publish('orders', '1', priority => 2)")
        conn.execute("SELECT messages.partition_archive('day'), messages.stage_publish('job')")
        assert reach(conn, "stranger") == {}
    finally:
        conn.execute(
            GENEROUS.replace("GRANT", "REVOKE")
            .replace(" TO ", " FROM ")
            .format(role="FOR ROLE messages_owner")
            .encode()
        )


@pytest.mark.parametrize("mended_by", ["fix", "upgrade"])
def test_health_names_who_reads_or_runs_what_it_should_not_until_it_is_taken_back(
    conn: Connection, login: Login, mended_by: str
) -> None:
    login("stranger")
    conn.execute(RESTORED.encode())
    severity, found, fix = finding(conn)
    assert severity == "critical"
    assert "stranger has " in found
    assert "REVOKE EXECUTE ON FUNCTION " in fix
    if mended_by == "fix":
        conn.execute(fix.encode())
    else:
        migrate(login("keeper", "messages_owner"))
    assert finding(conn)[0] == "ok"
    left = reach(conn, "stranger")
    # As for whoever was granted these by hand.
    assert left["schema"] == "USAGE"
    assert left["message"] == "DELETE INSERT SELECT UPDATE"
    assert left["message_archive"] == "INSERT SELECT"
    assert {"message_rows", "archive_rows", "audit", "queue", "mark_number"} & set(left) == set()
    assert set(internal()) & set(left) == set()
    assert "publish" in left


def install_without_groups(conn: Connection) -> None:
    migrations.uninstall(conn)
    with conn.transaction():
        leave_out_roles(conn)
        migrate(conn)


@pytest.mark.parametrize("groups", [True, False])
def test_what_the_documentation_lets_an_admin_grant_outlives_an_upgrade(
    conn: Connection, login: Login, groups: bool
) -> None:
    if not groups:
        install_without_groups(conn)
    login("worker")
    conn.execute(BY_HAND.encode())
    before = reach(conn, "worker")
    assert finding(conn)[0] == "ok"
    with conn.transaction():
        if not groups:
            leave_out_roles(conn)
        migrate(conn)
    # Whoever has a grant may ask for the version.
    known = dict.fromkeys(("schema_version", "latest_migration", "maintenance_mode"), "EXECUTE")
    assert reach(conn, "worker") == before | known
    assert len(before) == 7


@pytest.mark.parametrize("groups", [True, False])
def test_an_internal_function_is_told_with_and_without_the_group_roles(
    conn: Connection, login: Login, groups: bool
) -> None:
    if not groups:
        install_without_groups(conn)
    login("worker")
    conn.execute("GRANT EXECUTE ON FUNCTION messages.record_audit, messages.publish TO worker")
    severity, found, fix = finding(conn)
    assert (severity, found.partition(" has ")[0]) == ("critical", "worker")
    conn.execute((fix or "").encode())
    assert set(reach(conn, "worker")) == {"publish"}


def test_a_grant_that_was_passed_on_goes_with_the_right_to_pass_it_on(conn: Connection, login: Login) -> None:
    worker = login("worker")
    login("friend")
    conn.execute("GRANT USAGE ON SCHEMA messages TO worker")
    conn.execute("GRANT SELECT ON messages.message TO worker WITH GRANT OPTION")
    worker.execute("GRANT SELECT ON messages.message TO friend")
    conn.execute((finding(conn)[2] or "").encode())
    assert finding(conn)[0] == "ok"


def test_two_grants_to_a_new_role_at_once_succeed(connect: Connect, conn: Connection, login: Login) -> None:
    login("bob")
    conn.execute("SELECT messages.create_queue('orders'), messages.create_queue('returns')")
    first, second = connect(autocommit=False), connect()
    grant = "SELECT messages.grant_queue(%s, 'bob', 'consume')"
    first.execute(grant, ["orders"])
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(second.execute, grant, ["returns"])
        until_waiting(conn)
        first.commit()
        assert waits.result(timeout=20).fetchone() == (True,)


def test_an_open_grant_holds_up_no_drop_and_no_revoke_of_another_queue(connect: Connect, login: Login) -> None:
    login("bob")
    grantor, other = connect(autocommit=False), connect()
    other.execute("SELECT messages.create_queue('orders'), messages.create_queue('returns')")
    grant = "SELECT messages.grant_queue(%s, 'bob', 'consume')"
    other.execute(grant, ["returns"])
    grantor.execute(grant, ["orders"])
    other.execute("SET statement_timeout = '2s'")
    assert other.execute("SELECT messages.revoke_queue('returns', 'bob')").fetchone() == (1,)
    assert other.execute("SELECT messages.drop_queue('returns')").fetchone() == (0,)


BEYOND_THE_LIST = {
    "messages_publisher": "GRANT SELECT ON messages.message TO messages_publisher",
    "messages_reader": "GRANT INSERT ON messages.message_archive TO messages_reader",
    "messages_raw": "GRANT UPDATE (result) ON messages.message_archive TO messages_raw",
    "PUBLIC": "GRANT SELECT ON messages.message TO PUBLIC",
    "messages_consumer": "GRANT CREATE ON SCHEMA messages TO messages_consumer",
}


def test_a_group_and_public_have_what_the_list_says_and_no_more(conn: Connection) -> None:
    assert finding(conn)[0] == "ok"
    for grantee, grant in BEYOND_THE_LIST.items():
        with conn.transaction(force_rollback=True):
            conn.execute(grant.encode())
            severity, found, fix = finding(conn)
        assert (severity, found.partition(" ")[0], fix is None) == ("critical", grantee, False)
    conn.execute("; ".join(BEYOND_THE_LIST.values()).encode())
    migrate(conn)
    assert finding(conn)[0] == "ok"
