"""Who may do what: each role and verb over real logins, teams and their queues, hostile sessions, upgrades."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import (
    InvalidArgument,
    PermissionDenied,
    QueueNotFound,
    migrate,
    migrations,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import DispatchNotFound
from airflow_provider_pgqueue.core.installation import check_owner, grant_group, install, leave_out_roles
from tests.waiting import until
from tools import ROOT
from tools.chapters import functions
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Login = Callable[..., Connection]

GROUPS = ("publisher", "consumer", "observer", "maintenance", "admin", "raw", "reader", "pipeline", "limited", "nobody")
EVERYBODY = frozenset({"publisher", "consumer", "observer", "maintenance", "admin", "raw", "reader", "pipeline"})
# What the argument of a call is: by its name, or else by its type.
BY_NAME = {
    "queue_name": "orders",
    "queue_names": "{orders}",
    "topic": "shop.order",
    "pattern": "shop.*",
    "messages": "[1]",
    "winners": "[]",
    "result": "success",
    "pipeline": "export",
    "partition": "message_archive_202601",
    "partition_by": "month",
    "privilege": "consume",
}
BY_TYPE = {
    "text": "some",
    "integer": "10",
    "bigint": "1",
    "jsonb": "{}",
    "interval": "1 minute",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "text[]": "{some}",
    "bigint[]": "{1}",
}
# Functions that need more than that, so that a call gets beyond its first check.
CALLS = {
    "alter_history": "SELECT messages.alter_history(minutes_for => '3 days')",
    "alter_queue": "SELECT messages.alter_queue('orders', max_attempts => 3)",
    "create_queue": "SELECT messages.create_queue('mail')",
    "dismiss_dead": "SELECT messages.dismiss_dead('orders', 'why')",
    "expect_cron": "SELECT messages.expect_cron(NULL)",
    "outcome_counts": "SELECT messages.outcome_counts(reference => 'a')",
    "release_messages": "SELECT messages.release_messages('orders', '{1}')",
    "run_archived": "SELECT messages.begin_run('nightly', 'drain'), messages.run_archived('nightly')",
}
# Tables, views and what is internal, and which roles may do what with them.
OTHERS = {
    "queue_overview": ("SELECT FROM messages.queue_overview", "observer reader pipeline admin"),
    "message_overview": ("SELECT FROM messages.message_overview", "observer admin"),
    "dispatch_overview": ("SELECT FROM messages.dispatch_overview", "observer admin"),
    "archive_overview": ("SELECT FROM messages.archive_overview", "observer admin"),
    "read bodies": ("SELECT FROM messages.message", "raw reader pipeline"),
    "insert": ("INSERT INTO messages.message (message) VALUES ('1')", "raw"),
    "steal": ("DELETE FROM messages.message", "raw"),
    "read archive": ("SELECT FROM messages.message_archive", "raw reader pipeline"),
    "change archive": ("UPDATE messages.message_archive SET result = 'success'", ""),
    "truncate": ("TRUNCATE messages.message", ""),
    "read queue": ("SELECT FROM messages.queue", ""),
    "read audit": ("SELECT FROM messages.audit", ""),
    "change audit": ("DELETE FROM messages.audit", ""),
    "forge audit": ("SELECT messages.record_audit('purge_queue', 'orders', '{}', 1)", ""),
    "grant oneself": ("INSERT INTO messages.queue_grant VALUES ('orders', 'pg_monitor', 'consume')", ""),
    "store_time": ("SELECT messages.store_time('messages.mark_number', now())", ""),
    "make_archive_partitions": ("SELECT messages.make_archive_partitions()", ""),
    "end_due": ("SELECT messages.end_due('orders')", ""),
    "evade the checks": ("INSERT INTO messages.message_rows (message) VALUES ('1')", ""),
    "evade the checks of the archive": ("UPDATE messages.archive_rows SET result = 'success'", ""),
    "create in the schema": ("CREATE TABLE messages.mine ()", ""),
}


def roles_of(function: str) -> frozenset[str]:
    """Return the groups that may call a function, as the end of its comment says."""
    roles = functions()[function].roles
    if roles == {"internal"}:
        return frozenset()
    if roles == {"every role"}:
        return EVERYBODY
    return roles | {"admin"} | ({"pipeline"} if "reader" in roles else set())


def call_of(function: str, conn: Connection) -> str:
    """Return a call with a value for each argument that the function needs, and for its queue."""
    if function in CALLS:
        return CALLS[function]
    query = """
        SELECT name, format_type(type, NULL) FROM pg_proc
         CROSS JOIN unnest(proargnames[:pronargs], proargtypes::oid[]) WITH ORDINALITY AS argument (name, type, place)
         WHERE pronamespace = 'messages'::regnamespace AND proname = %s
           AND (place <= pronargs - pronargdefaults OR name = 'queue_name') ORDER BY place
    """
    arguments = [
        f"{name} => '{BY_NAME.get(name) or BY_TYPE[kind]}'::{kind}"
        for name, kind in conn.execute(query, [function]).fetchall()
    ]
    return f"SELECT messages.{function}({', '.join(arguments)})"


@contextmanager
def logins(dsn: str) -> Iterator[Login]:
    """Open sessions of roles that are made for it: `login("bob", "messages_consumer")`; both are gone at the end."""
    made: list[str] = []
    opened: list[Connection] = []
    with psycopg.connect(dsn, autocommit=True) as admin:

        def login(name: str, *groups: str, options: str = "") -> Connection:
            if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount == 0:
                admin.execute(f"CREATE ROLE {name} LOGIN {options}".encode())
                made.append(name)
            for group in groups:
                admin.execute(f"GRANT {group} TO {name}".encode())
            opened.append(psycopg.connect(dsn, user=name, autocommit=True))
            return opened[-1]

        try:
            yield login
        finally:
            for session in opened:
                session.close()
            for name in reversed(made):
                admin.execute(f"DROP OWNED BY {name} CASCADE".encode())
                admin.execute(f"DROP ROLE {name}".encode())


@pytest.fixture(scope="module")
def sessions(cluster: Cluster, template_database: str) -> Iterator[dict[str, Connection]]:
    """A session of a member of each group role, and of a login without any, in one database with the queue orders."""
    with logins(cluster.create_database("roles_matrix", template=template_database)) as login:
        with psycopg.connect(cluster.dsn("roles_matrix"), autocommit=True) as conn:
            conn.execute("SELECT messages.create_queue('orders')")
        yield {group: login(f"a_{group}", *([] if group == "nobody" else [f"messages_{group}"])) for group in GROUPS}
    cluster.drop_database("roles_matrix")


def refusal(conn: Connection, statement: str) -> str:
    """Return the SQLSTATE with which a statement fails, or an empty text; leave nothing behind."""
    with conn.transaction(force_rollback=True):
        try:
            conn.execute(statement.encode())
        except psycopg.Error as error:
            return str(error.sqlstate)
    return ""


@pytest.mark.parametrize("what", [*filter(roles_of, functions()), *OTHERS])
def test_a_role_may_do_its_verbs_and_no_other(sessions: dict[str, Connection], what: str) -> None:
    if what in OTHERS:
        statement, allowed = OTHERS[what][0], frozenset(OTHERS[what][1].split())
    else:
        statement, allowed = call_of(what, sessions["nobody"]), roles_of(what)
    found = {group: refusal(sessions[group], statement) for group in GROUPS}
    # Allowed, but orders has no such message, there is no such topic and no pg_cron.
    may = {group for group, state in found.items() if not state or state.startswith("PQ")}
    assert may == allowed, found
    assert {found[group] for group in set(GROUPS) - may} <= {"42501"}, found


def internal() -> list[str]:
    """Return the functions whose comments end with [internal]."""
    return [name for name, one in functions().items() if "internal" in one.roles]


def test_internal_functions_are_granted_to_nobody_and_nothing_to_public(conn: Connection) -> None:
    rows = conn.execute(
        """
        SELECT p.proname, p.proname = ANY (%s), proacl::text, proacl IS NULL,
               array_agg(a.grantee::regrole::text) FILTER (WHERE a.grantee <> p.proowner)
          FROM pg_proc p LEFT JOIN LATERAL aclexplode(p.proacl) a ON true
         WHERE p.pronamespace = 'messages'::regnamespace GROUP BY p.oid
        """,
        [internal()],
    ).fetchall()
    assert len(rows) > 60
    assert [name for name, _, acl, default, _ in rows if default or re.search(r"[{,]=", acl)] == []
    assert [name for name, hidden, _, _, grantees in rows if hidden and grantees] == []
    assert [name for name, hidden, _, _, grantees in rows if not hidden and not grantees] == []


def test_public_may_use_no_table_type_or_schema(conn: Connection) -> None:
    rows = conn.execute(
        """
        SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'messages'::regnamespace
        UNION ALL SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname = 'messages'
        UNION ALL
        SELECT typname, coalesce(typacl::text, '{=U/default}') FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
         WHERE typnamespace = 'messages'::regnamespace AND c.relkind = 'c'
        """
    ).fetchall()
    assert [name for name, acl in rows if acl and re.search(r"[{,]=", acl)] == []


def test_everything_belongs_to_a_role_that_nobody_can_be(conn: Connection, login: Login) -> None:
    # With what a call makes: a lane with its mark.
    conn.execute("SELECT messages.create_queue('orders')")
    login("shop", "messages_publisher").execute("SELECT messages.publish('orders', '1', priority => 7)")
    rows = conn.execute(
        """
        SELECT DISTINCT owner::regrole::text FROM (
            SELECT nspowner FROM pg_namespace WHERE nspname = 'messages'
            UNION SELECT relowner FROM pg_class WHERE relnamespace = 'messages'::regnamespace
            UNION SELECT typowner FROM pg_type WHERE typnamespace = 'messages'::regnamespace
            UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'messages'::regnamespace) AS owners (owner)
        """
    ).fetchall()
    assert rows == [("messages_owner",)]
    assert (
        conn.execute(
            "SELECT rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles"
            " WHERE rolname = 'messages_owner'"
        ).fetchone()
        == (False,) * 5
    )


def test_observers_read_no_body_and_no_token(conn: Connection, login: Login) -> None:
    conn.execute("SELECT messages.publish('default', '\"canary\"', headers => '{\"h\": \"canary\"}')")
    (token,) = conn.execute("SELECT lock_token::text FROM messages.lease('default')").fetchone() or (None,)
    observer = login("grafana", "messages_observer")
    seen = [
        str(observer.execute(query.encode()).fetchall())
        for query in ("TABLE messages.message_overview", "SELECT * FROM messages.status()")
    ]
    conn.execute("SELECT messages.archive(lock_token, '{1}') FROM messages.message")
    seen += [str(observer.execute(b"TABLE messages.archive_overview").fetchall())]
    assert "default" in seen[0]
    assert [text for text in seen if "canary" in text or token in text] == []


@pytest.fixture
def bob(conn: Connection, login: Login) -> Connection:
    """A session of bob, who may do everything with the queue orders and nothing with bills, which is full."""
    session = login("bob")
    for queue_name in ("orders", "bills"):
        conn.execute("SELECT messages.create_queue(%s, max_attempts => 1)", [queue_name])
        for number in range(3):
            conn.execute("SELECT messages.publish(%s, to_jsonb(%s))", [queue_name, number])
        conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'failed') FROM messages.lease(%s)", [queue_name])
    for privilege in ("publish", "consume", "observe"):
        run(conn, verbs.grant_queue("orders", "bob", privilege))
    return session


def names(session: Connection, query: str) -> set[str]:
    return {row[0] for row in session.execute(query.encode()).fetchall()}


def test_a_team_sees_only_its_queues(conn: Connection, bob: Connection) -> None:
    for query in (
        "SELECT queue_name FROM messages.status()",
        "SELECT queue_name FROM messages.ready_queues()",
        "SELECT queue_name FROM messages.ready_queues(ARRAY['orders', 'bills'])",
        "SELECT queue_name FROM messages.scan(ARRAY['orders', 'bills'])",
        "SELECT queue_name FROM messages.dead_queues()",
        "SELECT cause_queue FROM messages.dead_causes()",
        "SELECT message_queue FROM messages.search_messages()",
        "SELECT queue_name FROM messages.message_outcomes(ARRAY[1, 2, 3, 4, 5, 6, 7, 8]) WHERE result <> 'unknown'",
        "SELECT queue_name FROM messages.queue_overview",
        "SELECT queue_name FROM messages.message_overview",
        "SELECT queue_name FROM messages.archive_overview",
        "SELECT messages.granted_queues('publish')",
        "SELECT messages.granted_queues()",
    ):
        assert names(bob, query) == {"orders"}, query
        if "granted" not in query:
            assert {"orders", "bills"} <= names(conn, query), query


def test_a_team_ends_nothing_in_the_queue_of_another(conn: Connection, bob: Connection) -> None:
    for queue_name in ("orders", "bills"):
        run(conn, verbs.publish(queue_name, 1))
        run(conn, verbs.lease(queue_name, lease_for=timedelta(milliseconds=1)))
    left = "SELECT queue_name FROM messages.message WHERE lock_expires_at < clock_timestamp()"
    until(lambda: names(conn, left) == {"orders", "bills"})
    run(bob, verbs.scan(["orders", "bills"]))
    assert names(conn, left) == {"bills"}


def test_a_team_counts_its_own_messages_of_a_reference(conn: Connection, bob: Connection) -> None:
    for queue_name in ("orders", "bills"):
        run(conn, verbs.publish(queue_name, 1, reference="monday"))
    assert [one.number for one in run(bob, verbs.outcome_counts(reference="monday"))] == [1]
    with pytest.raises(PermissionDenied):
        run(bob, verbs.outcome_counts(reference="monday", queue_name="bills"))


def test_a_team_does_not_learn_what_a_message_of_another_was_requeued_as(conn: Connection, bob: Connection) -> None:
    for queue_name, follows in (("bills", 0), ("orders", 1)):
        run(conn, verbs.requeue_dead(queue_name))
        ids = "SELECT array_agg(id) FROM messages.message_archive WHERE queue_name = %s"
        ((dead,),) = conn.execute(ids, [queue_name]).fetchall()
        found = "SELECT FROM messages.message_outcomes(%s, true) WHERE id <> last_id"
        assert bob.execute(found, [dead]).rowcount == follows


@pytest.mark.parametrize("verb", ["lease_dead", "requeue_dead"])
def test_a_team_names_its_queue_where_others_may_leave_it_out(bob: Connection, verb: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="limited to its queues"):
        bob.execute(f"SELECT messages.{verb}()".encode())


def test_a_team_is_refused_at_a_queue_whose_marks_are_set(conn: Connection, bob: Connection) -> None:
    run(conn, verbs.publish_batch("bills", list(range(10))))
    for _ in range(3):  # from the third on they go the short way
        assert run(conn, verbs.lease("bills"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"role 'bob' has no privilege .* queue 'bills'"):
        bob.execute("SELECT messages.lease('bills')")


def test_a_team_is_refused_at_a_queue_that_counts_its_leases(conn: Connection, bob: Connection) -> None:
    """Whoever counts them keeps others out until the commit."""
    run(conn, verbs.alter_queue("bills", max_leased=1))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"role 'bob' has no privilege .* queue 'bills'"):
        bob.execute("SELECT messages.lease('bills')")


def test_a_team_sees_and_ends_only_its_own_dispatches(conn: Connection, bob: Connection) -> None:
    for queue_name in ("orders", "bills"):
        run(conn, verbs.dispatch_messages(queue_name, "pack"))
    for query in ("messages.open_dispatches()", "messages.open_dispatches('orders')", "messages.dispatch_overview"):
        assert names(bob, f"SELECT queue_name FROM {query}") == {"orders"}  # noqa: S608 the texts above
    conn.execute("UPDATE messages.dispatch SET opened_at = opened_at - interval '7 hours'")
    for one in run(conn, verbs.open_dispatches("bills")):
        # As if there were none: the name of another queue is not for him.
        assert run(bob, verbs.start_dispatch(one.dispatch_id)) is False
        assert run(conn, verbs.overdue_dispatches([one.dispatch_id])) == [one.dispatch_id]
        assert run(bob, verbs.overdue_dispatches([one.dispatch_id])) == []
        assert run(bob, verbs.extend_dispatches([one.dispatch_id])) == []
        assert run(bob, verbs.end_dispatch(one.dag_id, one.run_id, "success")) is None
        with pytest.raises(DispatchNotFound, match="no messages were dispatched to run"):
            run(bob, verbs.dispatched_messages(one.dag_id, one.run_id))
    assert len(run(conn, verbs.open_dispatches("bills"))) == 2
    for one in run(conn, verbs.open_dispatches("orders")):
        assert run(bob, verbs.end_dispatch(one.dag_id, one.run_id, "success")) == 1


def test_once_does_not_name_the_queue_of_another_team(conn: Connection, bob: Connection) -> None:
    foreign = conn.execute("SELECT min(id) FROM messages.message WHERE queue_name = 'bills'").fetchone()
    answers = set()
    for number in (foreign[0], 123456789):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
            bob.execute("SELECT messages.once('packer', %s)", [number])
        answers.add((error.value.diag.message_primary, error.value.diag.message_hint))
    assert len(answers) == 1


@pytest.mark.parametrize("privilege", ["publish", "consume", "observe"])
def test_a_privilege_on_a_queue_allows_its_verbs_there_and_none_elsewhere(
    conn: Connection, login: Login, privilege: str
) -> None:
    session, group = login("carol"), {"publish": "publisher", "consume": "consumer", "observe": "observer"}[privilege]
    for queue_name in ("orders", "bills"):
        conn.execute("SELECT messages.create_queue(%s)", [queue_name])
    run(conn, verbs.grant_queue("orders", "carol", privilege))
    # What takes no queue goes by the token, or shows the queues of the team alone.
    # An empty stage, whether there is such a queue, and the entries of the queues of the team.
    unasked = ("publish_staged", "closed_queues", "audit_log")
    calls = {verb: call_of(verb, conn) for verb in functions() if roles_of(verb)}
    with_queue = {verb: text for verb, text in calls.items() if "'orders'" in text and verb not in unasked}
    told = {}
    for verb, text in with_queue.items():
        for queue_name in ("orders", "bills"):
            try:
                with session.transaction(force_rollback=True):
                    session.execute(text.replace("'orders'", f"'{queue_name}'").encode())
                    refused = False
            except psycopg.Error as error:
                refused = error.sqlstate == "42501"
            told[verb, queue_name] = not refused
    allowed = {verb for verb in with_queue if group in roles_of(verb)}
    assert {cell for cell, may in told.items() if may} == {(verb, "orders") for verb in allowed}
    assert len(allowed) >= {"publish": 2, "consume": 5, "observe": 5}[privilege]


def test_maintenance_of_a_limited_login_is_that_of_all_queues(conn: Connection, login: Login, bob: Connection) -> None:
    (message,) = run(conn, verbs.lease("bills"))
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() WHERE id = %s", [message.id])
    assert "freed" in run(login("bob", "messages_maintenance"), verbs.maintain())
    assert conn.execute("SELECT FROM messages.message WHERE id = %s", [message.id]).rowcount == 0, "its last attempt"


def test_a_topic_that_reaches_another_queue_is_refused(conn: Connection, bob: Connection) -> None:
    conn.execute("SELECT messages.bind_topic('orders', 'shop.#'), messages.bind_topic('bills', 'shop.bill')")
    assert names(bob, "SELECT queue_name FROM messages.publish_topic('shop.order', '1')") == {"orders"}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("SELECT messages.publish_topic('shop.bill', '1')")


def test_the_refusal_names_queue_privilege_and_fix(bob: Connection) -> None:
    with pytest.raises(PermissionDenied, match=r"'bob'.* publish .*'bills'.*grant_queue\('bills', 'bob', 'publish'\)"):
        run(bob, verbs.publish("bills", 1))


def test_the_members_of_a_team_share_its_queues(conn: Connection, login: Login, bob: Connection) -> None:
    conn.execute("DROP ROLE IF EXISTS team_bills")
    team = login("team_bills")
    conn.execute("SELECT messages.grant_queue('bills', 'team_bills', 'consume')")
    carol = login("carol", "team_bills")
    assert names(carol, "SELECT queue_name FROM messages.lease('bills')") == {"bills"}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        carol.execute("SELECT messages.lease('orders')")
    team.close()


@pytest.mark.parametrize("options", ["INHERIT", "NOINHERIT"])
def test_set_role_does_not_lift_the_limit(conn: Connection, login: Login, bob: Connection, options: str) -> None:
    eve = login("eve", options=options)
    for privilege in ("publish", "consume"):
        conn.execute("SELECT messages.grant_queue('orders', 'eve', %s)", [privilege])
    for role in ("messages_consumer", "messages_publisher", "messages_limited"):
        eve.execute(f"SET ROLE {role}".encode())
        for call in ("publish('bills', '1')", "lease('bills')", "consume('bills')", "publish_batch('bills', '[1]')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                eve.execute(f"SELECT messages.{call}".encode())


def test_a_function_of_somebody_else_does_not_lift_the_limit(login: Login, conn: Connection, bob: Connection) -> None:
    conn.execute(
        "CREATE FUNCTION public.lend() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT messages.publish('bills', '1') $$"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="'bob'"):
        bob.execute("SELECT public.lend()")


def test_a_leaky_condition_on_a_view_sees_no_foreign_row(conn: Connection, bob: Connection) -> None:
    conn.execute("GRANT CREATE ON SCHEMA public TO bob")
    bob.execute(
        "CREATE FUNCTION public.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001"
        " AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
    )
    leaked: list[str] = []
    bob.add_notice_handler(lambda notice: leaked.append(notice.message_primary or ""))
    for view in ("archive_overview", "message_overview", "queue_overview"):
        bob.execute(f"SELECT FROM messages.{view} WHERE public.leak(queue_name)".encode())
    assert set(leaked) == {"orders"}


def test_what_was_revoked_is_refused_and_the_role_stays_limited(conn: Connection, bob: Connection) -> None:
    assert run(conn, verbs.revoke_queue("orders", "bob", "publish")) == 1
    with pytest.raises(PermissionDenied):
        run(bob, verbs.publish("orders", 1))
    assert run(bob, verbs.lease("orders"))
    assert run(conn, verbs.revoke_queue("orders", "bob")) == 2
    assert run(conn, verbs.revoke_queue("orders", "bob")) == 0
    assert names(bob, "SELECT queue_name FROM messages.status()") == set()
    assert bob.execute("SELECT messages.session_is_limited()").fetchone() == (True,)


def test_granting_twice_changes_nothing_and_a_dropped_queue_takes_its_grants_along(
    conn: Connection, bob: Connection
) -> None:
    assert run(conn, verbs.grant_queue("orders", "bob", "publish")) is False
    grants = conn.execute("SELECT queue_name, role_name, privilege, granted_by FROM messages.queue_grants()").fetchall()
    assert grants == [("orders", "bob", privilege, "postgres") for privilege in ("consume", "observe", "publish")]
    conn.execute("SELECT messages.drop_queue('orders', force => true)")
    assert conn.execute("SELECT FROM messages.queue_grants()").fetchall() == []


def test_an_admin_grants_without_being_a_superuser(conn: Connection, login: Login) -> None:
    login("dora")
    conn.execute("SELECT messages.create_queue('orders')")
    admin = login("boss", "messages_admin")
    assert run(admin, verbs.grant_queue("orders", "dora", "consume"))
    assert names(login("dora"), "SELECT queue_name FROM messages.status()") == {"orders"}
    assert admin.execute("SELECT granted_by FROM messages.queue_grants()").fetchall() == [("boss",)]


@pytest.mark.parametrize("group", ["messages_reader", "messages_pipeline", "messages_raw"])
def test_a_role_that_reads_all_bodies_is_not_limited_to_a_queue(conn: Connection, login: Login, group: str) -> None:
    login("dora", group)
    with pytest.raises(InvalidArgument, match="role 'dora' reads the messages of all queues"):
        run(conn, verbs.grant_queue("default", "dora", "consume"))
    assert conn.execute("SELECT pg_has_role('dora', 'messages_limited', 'MEMBER')").fetchone() == (False,)


@pytest.mark.parametrize(
    "grant",
    ["messages_reader", "messages_pipeline", "messages_raw", "SELECT ON messages.message_archive", "pg_read_all_data"],
)
def test_a_limited_login_that_reads_all_bodies_is_named_and_fixed(
    conn: Connection, bob: Connection, grant: str
) -> None:
    found = "SELECT severity, finding, fix FROM messages.health_limited_roles()"
    before = conn.execute(found).fetchone()
    assert before[0] == "ok"
    conn.execute(f"GRANT {grant} TO bob".encode())
    bob.execute("SELECT message FROM messages.message_archive")
    ((severity, finding, fix),) = conn.execute(found).fetchall()
    assert (severity, finding.rpartition(": ")[2]) == ("critical", "bob")
    conn.execute(fix.encode())
    assert conn.execute(found).fetchone() == before
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("SELECT message FROM messages.message_archive")


def test_admins_and_superusers_are_never_limited(conn: Connection, login: Login) -> None:
    boss = login("boss", "messages_admin", "messages_limited")
    for session in (boss, conn):
        assert session.execute("SELECT messages.session_is_limited()").fetchone() == (False,)
        session.execute("SELECT messages.publish('default', '1'), messages.lease_dead('default')")
    for name in ("boss", "postgres", "messages_publisher"):
        with pytest.raises(InvalidArgument, match="cannot be limited"):
            run(conn, verbs.grant_queue("default", name, "publish"))


def test_a_grant_that_cannot_be_names_the_value(conn: Connection, login: Login) -> None:
    login("bob")
    with pytest.raises(InvalidArgument, match=r"role 'niemand' does not exist.*CREATE ROLE niemand LOGIN"):
        run(conn, verbs.grant_queue("default", "niemand", "publish"))
    with pytest.raises(InvalidArgument, match=r"privilege is 'own'\. Give publish"):
        run(conn, verbs.grant_queue("default", "bob", "own"))
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        run(conn, verbs.grant_queue("nowhere", "bob", "publish"))
    with pytest.raises(InvalidArgument, match="'boss' does not exist"):
        grant_group(conn, "boss", ["bob"])
    with pytest.raises(InvalidArgument, match='"niemand" does not exist'):
        grant_group(conn, "admin", "niemand")


def test_a_limited_login_that_looks_for_what_is_ready_reads_nothing_of_other_queues(
    conn: Connection, bob: Connection
) -> None:
    conn.execute("SELECT messages.publish_batch('bills', (SELECT jsonb_agg(n) FROM generate_series(1, 5000) n))")
    with bob.transaction():
        bob.execute("SELECT * FROM messages.ready_queues(count_up_to => 5000)")
        row = bob.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'message_rows'"
        ).fetchone()
    assert row[0] < 100


SHADOWS = """
CREATE TABLE public.loot (who text);
GRANT ALL ON public.loot TO PUBLIC;
CREATE FUNCTION public.shadow(text, text) RETURNS boolean LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO public.loot VALUES (current_user); RETURN true; END $$;
CREATE OPERATOR public.= (FUNCTION = public.shadow, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO public.loot VALUES (current_user); RETURN 'x'; END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO public.loot VALUES (current_user); RETURN 'epoch'; END $$;
CREATE TEMP TABLE message (LIKE messages.message);
CREATE TEMP TABLE queue (LIKE messages.queue);
CREATE TEMP TABLE queue_grant (queue_name text, grantee regrole, privilege text);
CREATE TEMP TABLE pg_roles (rolname name, oid oid, rolsuper boolean);
CREATE TEMP TABLE pg_class (relname name);
CREATE FUNCTION pg_temp.pg_has_role(name, regrole, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SET search_path = pg_temp, public, pg_catalog;
"""
VICTIM = """
CREATE FUNCTION public.unpinned(name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    AS $$ BEGIN RETURN lower(name) = 'orders'; END $$
"""


def test_shadows_of_a_hostile_session_change_nothing(conn: Connection, login: Login, bob: Connection) -> None:
    eve = login("eve", "messages_publisher", "messages_consumer", "messages_observer", "messages_maintenance")
    conn.execute("GRANT CREATE ON SCHEMA public TO eve; GRANT SELECT ON messages.message, messages.queue TO eve")
    eve.execute(SHADOWS.encode())
    eve.execute("SELECT messages.publish('orders', '7', dedup_key => 'k', topic => 'a.b', group_key => 'g')")
    eve.execute("SELECT messages.publish_batch('orders', '[8]')")
    eve.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders', 10)")
    for call in (
        "status()",
        "ready_queues()",
        "scan('{orders}')",
        "dead_causes()",
        "search_messages()",
        "lease_dead('orders')",
        "maintain()",
        "session_is_limited()",
    ):
        eve.execute(f"SELECT messages.{call}".encode())
    eve.execute("SELECT FROM messages.archive_overview")
    assert conn.execute("SELECT who FROM public.loot WHERE who <> 'eve'").fetchall() == []
    assert conn.execute("SELECT count(*) FROM messages.message_archive WHERE result = 'success'").fetchone() == (4,)
    assert eve.execute("SELECT count(*) FROM pg_temp.message").fetchone() == (0,)
    # The shadows are real: a function that is not pinned runs them with the rights of its owner.
    conn.execute(VICTIM.encode())
    eve.execute("SELECT public.unpinned('x')")
    assert conn.execute("SELECT DISTINCT who FROM public.loot WHERE who <> 'eve'").fetchall() == [("postgres",)]


def test_a_limited_session_cannot_shadow_its_grants(conn: Connection, login: Login, bob: Connection) -> None:
    conn.execute("GRANT CREATE ON SCHEMA public TO bob; GRANT SELECT ON messages.message, messages.queue TO bob")
    bob.execute(SHADOWS.encode())
    bob.execute("INSERT INTO pg_temp.queue_grant VALUES ('bills', 'bob', 'consume')")
    bob.execute("SET messages.roles = 'off'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("SELECT messages.lease('bills')")
    assert names(bob, "SELECT queue_name FROM messages.status()") == {"orders"}


@pytest.fixture(scope="module")
def bare(another_cluster: Callable[..., Cluster]) -> Cluster:
    """A second cluster, without any group role."""
    return another_cluster("bare", cron_database="with_cron")


@pytest.fixture
def on_bare(bare: Cluster) -> Iterator[Callable[..., Connection]]:
    """Open a session of a database and user of the bare cluster, both made when needed; all is gone at the end."""
    opened: list[Connection] = []
    with psycopg.connect(bare.dsn(), autocommit=True) as admin:

        def open_one(database: str, user: str = "postgres", options: str = "") -> Connection:
            if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [user]).rowcount == 0:
                admin.execute(f"CREATE ROLE {user} LOGIN {options}".encode())
            if not bare.has_database(database):
                admin.execute(f"CREATE DATABASE {database} OWNER {user}".encode())
            opened.append(psycopg.connect(bare.dsn(database, user=user), autocommit=True))
            return opened[-1]

        yield open_one
        databases = {one.info.dbname for one in opened}
        for one in opened:
            one.close()
        for database in databases:
            bare.drop_database(database)
        for (role,) in admin.execute("SELECT rolname FROM pg_roles WHERE rolname !~ '^(pg_|postgres$)'").fetchall():
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        rows = admin.execute(
            "SELECT rolname FROM pg_roles WHERE rolname !~ '^(pg_|postgres$)'"
            " ORDER BY rolname = 'messages_owner', rolname NOT LIKE 'messages%'"
        )
        for (role,) in rows.fetchall():
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def group_roles(conn: Connection) -> int:
    (count,) = conn.execute(
        "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'messages\\_%' AND NOT rolcanlogin"
    ).fetchone() or (0,)
    return int(count)


def owners(conn: Connection) -> set[str]:
    return names(
        conn,
        "SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'messages'::regnamespace UNION"
        " SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = 'messages'::regnamespace UNION"
        " SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'messages'",
    )


def works(conn: Connection) -> None:
    conn.execute("SELECT messages.publish('default', '1', priority => 3)")
    assert conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('default')").rowcount == 1
    assert "archived" in run(conn, verbs.maintain())


def test_who_may_not_create_roles_installs_without_them(
    on_bare: Callable[..., Connection], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain = on_bare("shop", "plain")
    said: list[str] = []
    plain.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    migrate(plain)
    assert said == ["role plain may not create role messages_owner: installed without the group roles"]
    assert (group_roles(plain), owners(plain)) == (0, {"plain"})
    works(plain)
    assert plain.execute("SELECT messages.session_is_limited()").fetchone() == (False,)
    with pytest.raises(psycopg.errors.UndefinedObject, match="no role messages_limited"):
        plain.execute("SELECT messages.grant_queue('default', 'pg_monitor', 'observe')")
    with pytest.raises(PermissionDenied, match="Install again after ALTER ROLE plain CREATEROLE"):
        check_owner(plain)
    found = install(plain)
    assert not found["group_roles"]
    assert "messages_owner. Install again after ALTER ROLE plain CREATEROLE" in found["no_roles_because"]
    assert f"there are no group roles: {found['no_roles_because']}" in caplog.text
    with pytest.raises(PermissionDenied, match=r"role stranger is no member of plain.*GRANT plain TO stranger"):
        install(on_bare("shop", "stranger"))
    # Grants by hand are what version 0.1 had, and still do.
    guest = on_bare("shop", "guest")
    plain.execute("GRANT USAGE ON SCHEMA messages TO guest; GRANT EXECUTE ON FUNCTION messages.publish TO guest")
    plain.execute("GRANT SELECT ON messages.message_overview TO guest")
    guest.execute("SELECT messages.publish('default', '1')")
    assert names(guest, "SELECT queue_name FROM messages.message_overview") == {"default"}


def test_a_role_with_createrole_installs_and_grants_and_a_member_of_the_owner_upgrades(
    on_bare: Callable[..., Connection],
) -> None:
    maker = on_bare("shop", "maker", "CREATEROLE")
    migrate(maker)
    check_owner(maker)
    assert owners(maker) == {"messages_owner"}
    works(maker)
    packer = on_bare("shop", "packer")
    run(maker, verbs.grant_queue("default", "packer", "consume"))
    packer.execute("SELECT messages.lease('default')")
    grant_group(maker, "publisher", "packer")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no privilege to publish"):
        packer.execute("SELECT messages.publish('default', '1')")

    second = on_bare("shop", "second")
    with pytest.raises(PermissionDenied):
        migrate(second)
    maker.execute("GRANT messages_owner TO second")
    assert migrate(second) == []
    assert owners(second) == {"messages_owner"}
    works(second)
    packer.execute("SELECT messages.lease('default')")


def installation_refused(conn: Connection, **arguments: Any) -> tuple[str, str]:
    """Return why the installation is refused, and the statement that its hint gives."""
    with pytest.raises((PermissionDenied, psycopg.errors.FeatureNotSupported)) as refused:
        install(conn, **arguments)
    if isinstance(refused.value, PermissionDenied):
        return refused.value.problem, refused.value.fix or ""
    return refused.value.diag.message_primary or "", refused.value.diag.message_hint or ""


def test_a_refused_installation_names_what_is_missing_and_the_statement_that_gives_it(
    on_bare: Callable[..., Connection], bare: Cluster
) -> None:
    admin = on_bare("postgres_of_shop")
    admin.execute("CREATE ROLE guest LOGIN; CREATE ROLE other LOGIN")
    guest = on_bare("postgres_of_shop", "guest")
    problem, fix = installation_refused(guest)
    assert problem == "role guest may not create a schema in database postgres_of_shop"
    admin.execute(fix.encode())
    problem, fix = installation_refused(guest, roles=True)
    assert problem == "role 'guest' could not give schema messages to messages_owner"
    assert fix == "Install again after ALTER ROLE guest CREATEROLE, or install as a superuser."
    admin.execute("ALTER ROLE guest CREATEROLE")
    assert install(guest, roles=True)["group_roles"]
    other = on_bare("postgres_of_shop", "other")
    problem, fix = installation_refused(other)
    assert (problem, fix) == (
        "role other is no member of messages_owner, which owns schema messages",
        "GRANT messages_owner TO other",
    )
    guest.execute(fix.encode())
    assert install(other)["group_roles"]
    admin.execute("ALTER ROLE other NOINHERIT")
    if other.info.server_version < 160000:
        assert installation_refused(other)[1].startswith("Install after SET ROLE messages_owner")
    other.execute("SET ROLE messages_owner")
    assert install(other)["group_roles"]


def test_a_database_that_cannot_hold_every_text_is_refused_with_one_that_can(
    on_bare: Callable[..., Connection], bare: Cluster
) -> None:
    admin = on_bare("old_utf8_maker")
    admin.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        with psycopg.connect(bare.dsn("latin"), autocommit=True) as latin:
            problem, fix = installation_refused(latin)
            assert problem == "database latin has the encoding LATIN1, and messages need UTF8"
            assert latin.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)
        admin.execute(fix.partition(": ")[2].encode())
        with psycopg.connect(bare.dsn("latin_utf8"), autocommit=True) as one:
            assert migrate(one) == [1]
    finally:
        bare.drop_database("latin")
        bare.drop_database("latin_utf8")


def test_who_installed_without_roles_gives_the_schema_to_the_owner_when_it_may(
    on_bare: Callable[..., Connection],
) -> None:
    plain, admin = on_bare("shop", "plain"), on_bare("shop")
    migrate(plain)
    problem, fix = installation_refused(admin)
    assert problem == "plain may write code into schema messages, which would run as the superuser postgres"
    assert fix.startswith("Install as plain: PGUSER=plain")
    admin.execute("ALTER ROLE plain CREATEROLE")
    migrate(plain)
    assert owners(plain) == {"messages_owner"}
    works(plain)


def test_an_installation_without_roles_makes_none(on_bare: Callable[..., Connection]) -> None:
    conn = on_bare("shop")
    with conn.transaction():
        leave_out_roles(conn)
        migrate(conn)
    assert (group_roles(conn), owners(conn)) == (0, {"postgres"})
    works(conn)


def test_two_databases_installed_at_once_share_the_roles(on_bare: Callable[..., Connection]) -> None:
    sessions = [on_bare(f"shop_{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, sessions))
    assert group_roles(sessions[0]) == 10
    assert [owners(session) for session in sessions] == [{"messages_owner"}] * 4


def test_a_grant_that_the_comment_does_not_name_is_taken_back_from_a_group(conn: Connection, login: Login) -> None:
    conn.execute("GRANT EXECUTE ON FUNCTION messages.purge_queue TO messages_publisher")
    migrate(conn)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login("shop", "messages_publisher").execute("SELECT messages.purge_queue('default')")


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        (None, r"the comment of function messages\.stray\(\) does not end with who may call it"),
        ("Does nothing. [for: consumer] Or not.", r"the comment of function messages\.stray\(\) does not end with"),
        ("Does nothing. [for: consumer, customer]", r"stray\(\) is for consumer, customer, and there is no such role"),
    ],
)
def test_a_function_whose_comment_does_not_say_who_may_call_it_fails_the_installation(
    conn: Connection, comment: str | None, problem: str
) -> None:
    conn.execute("CREATE FUNCTION messages.stray() RETURNS void LANGUAGE sql AS ''")
    conn.execute(sql.SQL("COMMENT ON FUNCTION messages.stray() IS {}").format(sql.Literal(comment)))
    with pytest.raises(psycopg.errors.InvalidGrantOperation, match=problem) as refused:
        migrate(conn)
    assert "[for: ROLE, ROLE] or [internal]" in (refused.value.diag.message_hint or "")


def test_a_comment_grants_its_function(conn: Connection, login: Login) -> None:
    conn.execute("CREATE FUNCTION messages.greeting() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    conn.execute("COMMENT ON FUNCTION messages.greeting() IS 'Returns 1. [for: observer, reader]'")
    migrate(conn)
    assert login("grafana", "messages_observer").execute("SELECT messages.greeting()").fetchone() == (1,)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login("shop", "messages_consumer").execute("SELECT messages.greeting()")


def uninstall(conn: Connection) -> list[str]:
    said: list[str] = []
    conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    migrations.uninstall(conn)
    return [text for text in said if text.startswith("role")]


def test_uninstall_takes_the_roles_along_with_the_last_database(on_bare: Callable[..., Connection]) -> None:
    first, last = on_bare("first"), on_bare("last")
    for conn in (first, last):
        migrate(conn)
    on_bare("last", "bob")
    run(last, verbs.grant_queue("default", "bob", "consume"))
    assert len(uninstall(first)) == 10
    assert group_roles(last) == 10
    works(last)
    assert uninstall(last) == []
    for conn in (first, last):
        assert group_roles(conn) == 0
        assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


def test_uninstall_by_who_may_not_drop_roles_leaves_them(on_bare: Callable[..., Connection]) -> None:
    migrate(on_bare("shop"))
    second = on_bare("shop", "second")
    on_bare("shop").execute("GRANT messages_owner TO second")
    assert len(uninstall(second)) == 10
    assert group_roles(second) == 10


def test_roles_that_other_databases_use_outlive_uninstall_by_psql(cluster: Cluster, dsn: str, conn: Connection) -> None:
    program = cluster.binaries.folder / "psql"
    done = subprocess.run(
        [program, "-q", "-v", "ON_ERROR_STOP=1", "-f", ROOT / "sql" / "uninstall.sql", dsn],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "role messages_owner stays" in done.stderr
    assert group_roles(conn) == 10


@pytest.mark.cron
def test_pg_cron_is_seen_by_everybody_whoever_owns_the_job_and_leaves_no_trace(cron_dsn: str) -> None:
    with logins(cron_dsn) as login, psycopg.connect(cron_dsn, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
        migrate(conn)
        conn.execute("SELECT cron.schedule('somebody else''s', '0 3 * * *', 'SELECT 1')")
        keeper = login("keeper", "messages_maintenance")
        with pytest.raises(PermissionDenied):
            run(keeper, verbs.install_cron())
        conn.execute("GRANT USAGE ON SCHEMA cron TO keeper")
        run(keeper, verbs.install_cron())
        assert conn.execute("SELECT DISTINCT username FROM cron.job WHERE jobname LIKE 'messages:%'").fetchall() == [
            ("keeper",)
        ]
        for session in (conn, keeper, login("shop", "messages_publisher")):
            assert run(session, verbs.maintenance_mode()) == "pg_cron"
        conn.execute(
            "INSERT INTO cron.job_run_details (jobid, runid, database, command, status, start_time, end_time)"
            " SELECT jobid, 1000 + jobid, database, command, 'succeeded', past, past"
            " FROM cron.job, (VALUES (now() - interval '9 days')) AS at (past)"
        )
        left = "SELECT count(*) FROM cron.job_run_details WHERE runid > 1000"
        # At the full minute it is pg_cron that runs maintenance.
        assert until(lambda: run(keeper, verbs.maintain()) and conn.execute(left).fetchone() == (1,))
        uninstall(conn)
        assert conn.execute("SELECT jobname FROM cron.job").fetchall() == [("somebody else's",)]
        assert conn.execute("SELECT FROM pg_policy WHERE polname = 'messages_owner'").rowcount == 0
        assert (
            conn.execute(
                "SELECT FROM pg_shdepend WHERE refobjid = 'messages_owner'::regrole"
                " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).rowcount
            == 0
        )
