"""Whatever a session sets, what it publishes is checked: nobody passes for publish()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.test_roles import Login, logins

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
# What the setting may hold at most: the words of old, numbers, what the sequence itself would be compared with.
FORGERIES = ["yes", "", "1", "true", "0", "messages.admission", "9223372036854775807", "NULL"]
RAW = "INSERT INTO messages.message (queue_name, message, priority, group_key) VALUES (%s, %s, %s, %s)"


@pytest.fixture
def login(dsn: str) -> Iterator[Login]:
    with logins(dsn) as login:
        yield login


def forge(conn: Connection, forgery: str) -> None:
    conn.execute("SELECT set_config('messages.admitted', %s, false)", [forgery])


@pytest.mark.parametrize("who", ["owner", "raw"])
def test_plain_sql_is_checked_whatever_the_session_sets(conn: Connection, login: Login, queue: Queue, who: str) -> None:
    session = conn if who == "owner" else login("forger", "messages_raw")
    for place, forgery in enumerate(FORGERIES):
        orders, narrow = queue(f"orders_{place}", max_body_bytes=100), queue(f"narrow_{place}", max_depth=1)
        forge(session, forgery)
        for state, row in [
            ("PQ001", ["nowhere", "1", 0, None]),
            ("PQ005", [orders, f'"{"x" * 200}"', 0, None]),
            ("PQ004", [orders, "1", 101, None]),
            ("PQ004", [orders, "1", -101, None]),
        ]:
            with pytest.raises(psycopg.Error) as refused:
                session.execute(RAW, row)
            assert refused.value.sqlstate == state
        session.execute(RAW, [narrow, "1", 0, None])
        with pytest.raises(psycopg.Error, match=f"queue '{narrow}' is full"):
            session.execute(RAW, [narrow, "1", 0, None])
        for number in (1, 2, 3):
            session.execute(RAW, [orders, str(number), 5, "one at a time"])
        assert [message.body for message in run(conn, verbs.lease(orders, max_messages=10))] == [1]


def test_a_publisher_is_checked_whatever_it_sets(conn: Connection, login: Login, queue: Queue) -> None:
    publisher = login("forger", "messages_publisher")
    for place, forgery in enumerate(FORGERIES):
        orders, narrow = queue(f"orders_{place}", max_body_bytes=100), queue(f"narrow_{place}", max_depth=2)
        forge(publisher, forgery)
        for state, call in [
            ("PQ001", "publish('nowhere', '1')"),
            ("PQ001", "publish_batch('nowhere', '[1]')"),
            ("PQ005", f"publish('{orders}', to_jsonb(repeat('x', 200)))"),
            ("PQ005", f"publish_batch('{orders}', jsonb_build_array(repeat('x', 200)))"),
            ("PQ005", f"publish_deduplicated('{orders}', jsonb_build_array(repeat('x', 200)), '{{key}}')"),
            ("PQ007", f"publish_batch('{narrow}', '[1, 2, 3]')"),
        ]:
            with pytest.raises(psycopg.Error) as refused:
                publisher.execute(f"SELECT messages.{call}".encode())
            assert refused.value.sqlstate == state
        run(publisher, verbs.publish_batch(orders, [1, 2, 3], priority=7, group_keys=["g"] * 3))
        assert [message.body for message in run(conn, verbs.lease(orders, max_messages=10))] == [1]


def test_publish_leaves_nothing_behind_that_a_session_could_show_again(
    conn: Connection, login: Login, queue: Queue
) -> None:
    queue("orders", max_body_bytes=100)
    publisher = login("forger", "messages_publisher", "messages_raw")
    left = "SELECT coalesce(current_setting('messages.admitted', true), '')"
    with publisher.transaction():
        publisher.execute("SELECT messages.publish('orders', '1')")
        assert publisher.execute(left).fetchone() == ("",)
        for bad in ("to_jsonb(repeat('x', 200))", "NULL"):
            with pytest.raises(psycopg.Error), publisher.transaction():
                publisher.execute(f"SELECT messages.publish('orders', {bad})".encode())
            assert publisher.execute(left).fetchone() == ("",)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        publisher.execute("SELECT last_value FROM messages.admission")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        publisher.execute("SELECT setval('messages.admission', 7)")


def test_publish_does_not_pay_for_the_trigger(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute("SET track_functions = 'pl'")
    with conn.transaction():
        for number in range(100):
            run(conn, verbs.publish("orders", number))
        calls = "SELECT coalesce(pg_stat_get_xact_function_calls('messages.new_message()'::regprocedure), 0)"
        (called,) = conn.execute(calls).fetchone() or (None,)
    assert called < 15  # one in a hundred goes through it on purpose


def test_each_installation_draws_its_own_number(conn: Connection, cluster: Any, empty_dsn: str) -> None:
    from airflow_provider_pgqueue.core import migrate

    number = "SELECT last_value FROM messages.admission"
    with psycopg.connect(empty_dsn, autocommit=True) as other:
        migrate(other)
        assert other.execute(number).fetchone() != conn.execute(number).fetchone()
