"""The names of PGMQ on our queues, in SQL: sql/pgmq.sql."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import ForeignSchema, SchemaMissing
from airflow_provider_pgqueue.core.migrations import uninstall
from airflow_provider_pgqueue.core.pgmq import install_names
from tests.test_docs import of_page
from tests.waiting import until, until_leases_expire

Connection = psycopg.Connection[Any]
Login = Callable[..., Connection]
NOT_OFFERED = {
    "SELECT pgmq.create_unlogged('orders')": "pgmq.create",
    "SELECT pgmq.create_partitioned('orders', '1000', '10000')": "retention",
    "SELECT * FROM pgmq.read('orders', 30, 1, '{\"a\": 1}')": "a queue for each kind",
    "SELECT msg_id FROM pgmq.read_grouped('orders', 30, 1)": "group_key",
    "SELECT msg_id FROM pgmq.read_grouped_rr_with_poll('orders', 30, 1, 5, 100)": "fair_by",
    "SELECT pgmq.send_topic(routing_key => 'a.b', msg => '{}')": "messages.publish_topic",
    "SELECT pgmq.bind_topic('a.*', 'orders')": "messages.bind_topic",
    "SELECT pgmq.enable_notify_insert('orders')": "LISTEN new_message",
}


def one(conn: Connection, statement: str, *values: Any) -> Any:
    row = conn.execute(statement.encode(), values).fetchone()
    return None if row is None else row[0]


def ids(conn: Connection, statement: str, *values: Any) -> list[int]:
    return [row[0] for row in conn.execute(statement.encode(), values).fetchall()]


def results(conn: Connection) -> list[str]:
    return ids(conn, "SELECT result FROM messages.message_archive ORDER BY id")  # type: ignore[return-value]


@pytest.fixture
def orders(names: Connection) -> Connection:
    names.execute("SELECT pgmq.create('orders')")
    return names


# Install ------------------------------------------------------------------------------------------------------------


def test_they_belong_to_the_owner_of_the_queues_and_pin_their_names(names: Connection) -> None:
    install_names(names)
    owners = "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace"
    assert ids(names, owners) == ["messages_owner"]
    unpinned = "SELECT proname FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace AND proconfig IS NULL"
    assert ids(names, unpinned) == []


def test_they_are_refused_next_to_the_extension_or_without_the_queue(conn: Connection, empty_dsn: str) -> None:
    conn.execute("CREATE SCHEMA pgmq")
    with pytest.raises(ForeignSchema, match=r"the extension PGMQ, or its SQL, is there.*adopt-pgmq"):
        install_names(conn)
    assert ids(conn, "SELECT oid FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace") == []
    with (
        psycopg.connect(empty_dsn, autocommit=True) as empty,
        pytest.raises(SchemaMissing),
    ):
        install_names(empty)


def test_uninstall_takes_ours_along_and_leaves_that_of_the_extension(names: Connection) -> None:
    uninstall(names)
    assert one(names, "SELECT to_regnamespace('pgmq')") is None


def test_uninstall_leaves_a_schema_pgmq_that_is_not_ours(conn: Connection) -> None:
    conn.execute("CREATE SCHEMA pgmq")
    uninstall(conn)
    assert one(conn, "SELECT to_regnamespace('pgmq')") is not None


# Who may ------------------------------------------------------------------------------------------------------------


def test_a_login_may_do_what_its_group_may_and_no_more(orders: Connection, login: Login) -> None:
    shop, packer, stranger = login("pgmq_shop", "publisher"), login("pgmq_packer", "consumer"), login("pgmq_stranger")
    id_ = one(shop, "SELECT pgmq.send('orders', '1')")
    for conn, statement in (
        (shop, "SELECT pgmq.read('orders', 30, 1)"),
        (shop, f"SELECT pgmq.archive('orders', {id_})"),
        (packer, "SELECT pgmq.send('orders', '1')"),
        (packer, "SELECT pgmq.purge_queue('orders')"),
        (stranger, "SELECT pgmq.send('orders', '1')"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement.encode())
    assert one(packer, "SELECT pgmq.archive('orders', %s)", id_)


@pytest.mark.parametrize("act", ["archive('orders', %s)", "delete('orders', %s)", "set_vt('orders', %s, 0)"])
def test_a_team_reaches_its_queues_only(orders: Connection, login: Login, act: str) -> None:
    team = login("pgmq_team")
    orders.execute("SELECT messages.create_queue('theirs')")
    run(orders, verbs.grant_queue("theirs", "pgmq_team", "consume"))
    id_ = one(orders, "SELECT pgmq.send('orders', '1')")
    one(orders, "SELECT msg_id FROM pgmq.read('orders', 30, 1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="'orders'"):
        team.execute(f"SELECT pgmq.{act}".encode(), [id_])
    mine = one(orders, "SELECT pgmq.send('theirs', '2')")
    one(team, "SELECT msg_id FROM pgmq.read('theirs', 30, 1)")
    assert ids(team, f"SELECT pgmq.{act}".replace("orders", "theirs"), mine)
    assert ids(team, "SELECT queue_name FROM pgmq.list_queues()") == ["theirs"]
    assert ids(team, "SELECT queue_name FROM pgmq.metrics_all()") == ["theirs"]


def test_a_message_of_another_queue_is_not_found_by_its_id(orders: Connection) -> None:
    orders.execute("SELECT pgmq.create('others')")
    id_ = one(orders, "SELECT pgmq.send('orders', '1')")
    assert not one(orders, "SELECT pgmq.archive('others', %s)", id_)
    assert ids(orders, "SELECT msg_id FROM pgmq.set_vt('others', %s, 60)", id_) == []
    assert one(orders, "SELECT pgmq.archive('orders', %s)", id_)


# What they do -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "headers", "is_late"),
    [
        ("'orders', '1'", None, False),
        ("'orders', '1', '{\"h\": 1}'::jsonb", {"h": 1}, False),
        ("'orders', '1', 60", None, True),
        ("'orders', '1', 0", None, False),
        ("'orders', '1', now() + interval '1 minute'", None, True),
        ("'orders', '1', '{\"h\": 1}'::jsonb, 60", {"h": 1}, True),
        ("'orders', '1', '{\"h\": 1}'::jsonb, now() - interval '1 minute'", {"h": 1}, False),
        ("queue_name => 'orders', msg => '1', delay => now() + interval '1 minute'", None, True),
        ("queue_name => 'orders', msg => '1', headers => '{\"h\": 1}'::jsonb, delay => 60", {"h": 1}, True),
    ],
)
@pytest.mark.parametrize("verb", ["send", "send_batch"])
def test_a_message_is_published_with_headers_and_a_delay(
    orders: Connection, verb: str, arguments: str, headers: Any, is_late: bool
) -> None:
    if verb == "send_batch":
        arguments = arguments.replace("'1'", "ARRAY['1', '2']::jsonb[]", 1).replace("msg =>", "msgs =>")
        arguments = arguments.replace("'{\"h\": 1}'::jsonb", "ARRAY['{\"h\": 1}', '{\"h\": 1}']::jsonb[]")
    sent = ids(orders, f"SELECT pgmq.{verb}({arguments})")
    found = "SELECT id, headers, visible_at > clock_timestamp() + interval '50 s' FROM messages.message ORDER BY id"
    assert orders.execute(found.encode()).fetchall() == [(id_, headers, is_late) for id_ in sent]
    assert len(sent) == 1 + (verb == "send_batch")


def test_a_batch_keeps_its_order_and_the_headers_of_each(orders: Connection) -> None:
    batch = "ARRAY['1', '2', '3']::jsonb[], ARRAY['{\"n\": 1}', NULL, '{\"n\": 3}']::jsonb[]"
    sent = ids(orders, f"SELECT pgmq.send_batch('orders', {batch})")
    rows = orders.execute("SELECT msg_id, message, headers FROM pgmq.read('orders', 30, 5)").fetchall()
    assert rows == list(zip(sent, [1, 2, 3], [{"n": 1}, None, {"n": 3}], strict=True))
    with pytest.raises(psycopg.Error, match="3 messages have 1 headers"):
        orders.execute("SELECT pgmq.send_batch('orders', ARRAY['1', '2', '3']::jsonb[], ARRAY['{}']::jsonb[])")
    assert ids(orders, "SELECT pgmq.send_batch('orders', '{}'::jsonb[])") == []


def test_the_record_says_attempts_and_the_end_of_the_lease(orders: Connection) -> None:
    one(orders, "SELECT pgmq.send('orders', '1')")
    statement = "SELECT read_ct, vt - last_read_at, enqueued_at <= last_read_at FROM pgmq.read('orders', 1, 1)"
    (attempts, lasts, is_later) = orders.execute(statement.encode()).fetchone() or ()
    assert (attempts, is_later) == (1, True)
    assert 0.9 < lasts.total_seconds() <= 1
    assert ids(orders, "SELECT msg_id FROM pgmq.read('orders', 1, 1)") == []
    assert ids(orders, "SELECT read_ct FROM pgmq.read_with_poll('orders', 1, 1, 10, 20)") == [2]
    assert ids(orders, "SELECT msg_id FROM pgmq.read_with_poll('orders', 1, 1, 0)") == []


@pytest.mark.parametrize("verb", ["archive", "delete"])
@pytest.mark.parametrize("state", ["waiting", "leased", "lease that ended", "locked by plain SQL"])
def test_archive_and_delete_finish_a_message_whoever_has_it(orders: Connection, verb: str, state: str) -> None:
    several = ids(orders, "SELECT pgmq.send_batch('orders', ARRAY['1', '2', '3']::jsonb[])")
    if state == "locked by plain SQL":
        lock = "UPDATE messages.message SET lock_expires_at = now() + interval '1 minute', locked_by = 'packer'"
        orders.execute(lock.encode())
    elif state != "waiting":
        lasts = timedelta(minutes=1) if state == "leased" else timedelta(milliseconds=1)
        run(orders, verbs.lease("orders", max_messages=3, lease_for=lasts))
    if state == "lease that ended":
        until_leases_expire(orders)
    assert one(orders, f"SELECT pgmq.{verb}('orders', %s)", several[0])
    assert not one(orders, f"SELECT pgmq.{verb}('orders', %s)", several[0])
    assert sorted(ids(orders, f"SELECT pgmq.{verb}('orders', %s)", [*several, 99])) == several[1:]
    assert results(orders) == ["success"] * 3
    assert run(orders, verbs.lease("orders")) == []


def test_set_vt_moves_the_end_of_a_lease_and_the_time_of_what_waits(orders: Connection) -> None:
    leased, waiting = ids(orders, "SELECT pgmq.send_batch('orders', ARRAY['1', '2']::jsonb[])")
    assert ids(orders, "SELECT msg_id FROM pgmq.read('orders', 5, 1)") == [leased]
    later = "SELECT msg_id FROM pgmq.set_vt('orders', %s::bigint[], 600) WHERE vt > now() + interval '590 s'"
    assert ids(orders, later, [leased, waiting]) == [leased, waiting]
    assert ids(orders, "SELECT msg_id FROM pgmq.read('orders', 5, 2)") == []
    at_once = "SELECT msg_id FROM pgmq.set_vt('orders', %s::bigint[], clock_timestamp())"
    assert ids(orders, at_once, [leased, waiting]) == [leased, waiting]
    assert sorted(until(lambda: ids(orders, "SELECT msg_id FROM pgmq.read('orders', 5, 2)"))) == [leased, waiting]
    assert ids(orders, "SELECT msg_id FROM pgmq.set_vt('orders', 99::bigint, 60)") == []


def test_set_vt_beyond_the_longest_lease_gives_the_message_back_for_then(orders: Connection) -> None:
    id_ = one(orders, "SELECT pgmq.send('orders', '1')")
    one(orders, "SELECT msg_id FROM pgmq.read('orders', 5, 1)")
    tomorrow = "SELECT vt > now() + interval '23 hours' FROM pgmq.set_vt('orders', %s::bigint, 86400)"
    assert one(orders, tomorrow, id_)
    assert one(orders, "SELECT lock_token FROM messages.message") is None


def test_set_vt_leaves_the_place_of_a_message_in_its_group(orders: Connection) -> None:
    first = run(orders, verbs.publish("orders", 1, group_key="a"))
    run(orders, verbs.publish("orders", 2, group_key="a"))
    orders.execute("SELECT pgmq.set_vt('orders', %s::bigint, 600)", [first])
    assert ids(orders, "SELECT msg_id FROM pgmq.read('orders', 5, 2)") == [first]
    assert one(orders, "SELECT pgmq.archive('orders', %s)", first)
    assert ids(orders, "SELECT message FROM pgmq.read('orders', 5, 2)") == [2]


def test_pop_takes_a_message_out(orders: Connection) -> None:
    one(orders, "SELECT pgmq.send('orders', '1')")
    assert ids(orders, "SELECT message FROM pgmq.pop('orders')") == [1]
    assert ids(orders, "SELECT message FROM pgmq.pop('orders', 5)") == []
    assert results(orders) == ["success"]


def test_queues_are_listed_counted_purged_and_dropped(orders: Connection) -> None:
    assert ids(orders, "SELECT queue_name FROM pgmq.list_queues()") == ["default", "orders"]
    ids(orders, "SELECT pgmq.send_batch('orders', ARRAY['1', '2', '3']::jsonb[])")
    one(orders, "SELECT pgmq.send('orders', '1', 60)")
    one(orders, "SELECT msg_id FROM pgmq.read('orders', 30, 1)")
    counts = "SELECT queue_length, queue_visible_length, total_messages, newest_msg_age_sec FROM pgmq.metrics('orders')"
    assert orders.execute(counts.encode()).fetchone() == (4, 2, 4, 0)
    assert ids(orders, "SELECT queue_name FROM pgmq.metrics_all()") == ["default", "orders"]
    assert one(orders, "SELECT pgmq.purge_queue('orders')") == 3
    assert [one(orders, "SELECT pgmq.drop_queue('orders')") for _ in range(2)] == [True, False]
    with pytest.raises(psycopg.Error, match="'orders' does not exist"):
        orders.execute("SELECT pgmq.metrics('orders')")


@pytest.mark.parametrize("statement", NOT_OFFERED)
def test_what_is_not_offered_says_what_to_use(orders: Connection, statement: str) -> None:
    told = f"is not offered here, use .*{NOT_OFFERED[statement]}"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=told):
        orders.execute(statement.encode())


def test_the_page_runs(names: Connection) -> None:
    for statement in of_page("docs/how-to/move-here.md", "sql", "runnable: pgmq")[0].strip().split(";\n"):
        names.execute(statement.encode())
    assert results(names) == ["success"]


def test_what_our_consumers_do_is_the_same_queue(orders: Connection) -> None:
    one(orders, "SELECT pgmq.send('orders', '1')")
    (message,) = run(orders, verbs.lease("orders"))
    assert ids(orders, "SELECT msg_id FROM pgmq.read('orders', 30, 1)") == []
    assert run(orders, verbs.archive(message.lock_token, [message.id])) == [message.id]
    run(orders, verbs.publish("orders", 2))
    assert ids(orders, "SELECT message FROM pgmq.read('orders', 30, 1)") == [2]
