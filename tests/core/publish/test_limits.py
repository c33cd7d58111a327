"""What a message may be: its size, its times, its headers, its room in a queue and a stage; and what JSON can say."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, InvalidMessage, run, verbs
from airflow_provider_pgqueue.core import connect as open_connection
from airflow_provider_pgqueue.core.errors import MessageTooLarge
from airflow_provider_pgqueue.core.json_text import to_json
from tests.waiting import until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def state_of(conn: Connection, statement: str, *values: Any) -> str | None:
    try:
        conn.execute(statement.encode(), values)
    except psycopg.Error as error:
        return error.sqlstate
    return None


@pytest.mark.parametrize("body", ["x" * 2000, {"a": ["y" * 500] * 10}], ids=["text", "object"])
def test_a_body_that_is_too_large_is_refused_without_quoting_it(conn: Connection, queue: Queue, body: Any) -> None:
    queue("orders", max_body_bytes=1000)
    for verb in (verbs.publish("orders", body), verbs.publish_batch("orders", [1, body])):
        with pytest.raises(MessageTooLarge, match=r"queue 'orders'.*max_body_bytes is 1000") as refused:
            run(conn, verb)
        assert "xxx" not in str(refused.value)
    assert conn.execute("SELECT FROM messages.message").rowcount == 0


def test_what_json_or_postgresql_cannot_say_is_refused_without_quoting_it(shared: Connection) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    bodies = [float("nan"), [float("inf")], {"a": object()}, {1, 2}, b"bytes", {("a",): 1}, "SECRET\ud800", deep]
    for body in [*bodies, "SECRET\0", {"SECRET\0": 1}]:
        with pytest.raises(InvalidMessage) as refused:
            run(shared, verbs.publish("orders", body))
        assert "SECRET" not in str(refused.value)
        with pytest.raises(InvalidMessage):
            run(shared, verbs.publish_batch("orders", [1, body]))


def test_a_body_comes_out_as_it_went_in(shared: Connection) -> None:
    bodies = [{"__classname__": "airflow.models.Connection", "__version__": 1, "__data__": {}}, None, [], "", 0]
    for body in [*bodies, "{{ 7*7 }}", {"__type": "timedelta", "__var": 5}, "'; DROP TABLE messages.message; --"]:
        with shared.transaction(force_rollback=True):
            run(shared, verbs.publish("orders", body))
            (message,) = run(shared, verbs.lease("orders"))
        assert (message.body, type(message.body)) == (body, type(body))
        assert "DROP" not in repr(message)


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=10,
)


@given(body=JSON)
def test_any_json_survives_the_encoder(body: Any) -> None:
    assert json.loads(to_json(body)) == body


@pytest.mark.parametrize(
    "again", ["publish(%s, %s, dedup_key => 'k'", "publish_deduplicated(%s, jsonb_build_array(%s::jsonb), '{k}'"]
)
def test_a_body_that_replaces_another_is_no_larger_than_the_queue_allows(
    conn: Connection, queue: Queue, again: str
) -> None:
    queue("orders", max_body_bytes=100)
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    call = f"SELECT messages.{again}, on_conflict => 'replace')"
    assert state_of(conn, call, "orders", json.dumps("x" * 200)) == "PQ005"
    assert state_of(conn, call, "orders", json.dumps("x" * 20)) is None
    assert [message.body for message in run(conn, verbs.lease("orders"))] == ["x" * 20]


def test_a_body_out_of_a_table_counts_as_large_as_it_is(conn: Connection, queue: Queue) -> None:
    queue("orders", max_body_bytes=1_000)
    conn.execute("CREATE TABLE public.source (body jsonb)")
    conn.execute("INSERT INTO public.source VALUES (to_jsonb(repeat('x', 5000)))")
    assert conn.execute("SELECT pg_column_size(body) < 1000 FROM public.source").fetchone() == (True,)
    for number in range(10):  # the generic plan, in which the value is not a constant
        run(conn, verbs.publish("orders", number))
    # A trigger publishes the value as its table holds it.
    conn.execute(
        "CREATE FUNCTION public.pass_on() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM messages.publish('orders', NEW.body); RETURN NULL; END $$;"
        " CREATE TRIGGER pass_on AFTER UPDATE ON public.source FOR EACH ROW EXECUTE FUNCTION public.pass_on()"
    )
    for statement in (
        "UPDATE public.source SET body = body",
        "SELECT messages.publish('orders', body) FROM public.source",
        "SELECT messages.publish_batch('orders', jsonb_build_array(body)) FROM public.source",
        "INSERT INTO messages.message (queue_name, message) SELECT 'orders', body FROM public.source",
    ):
        assert state_of(conn, statement) == "PQ005", statement


def test_a_body_whose_text_nobody_can_read_comes_in_by_no_way(conn: Connection, queue: Queue) -> None:
    """A number of ten bytes may have 131,072 digits; 60 of them are 900 bytes as jsonb, and 8 MB as text."""
    queue("orders")
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    for statement in (
        "SELECT messages.publish('orders', %s)",
        "SELECT messages.publish('orders', %s, dedup_key => 'other')",
        "SELECT messages.publish('orders', %s, dedup_key => 'k', on_conflict => 'replace')",
        "SELECT messages.publish('orders', %s, group_key => 'a')",
        "SELECT messages.publish_batch('orders', jsonb_build_array(1, %s::jsonb))",
        "SELECT messages.publish_topic('shop.a', %s)",
        "INSERT INTO messages.message (queue_name, message) VALUES ('orders', '1'), ('orders', %s)",
    ):
        assert state_of(conn, statement, "[" + ", ".join(["1e131071"] * 60) + "]") == "PQ005", statement
        assert state_of(conn, statement, json.dumps(["x" * 2000])) is None, statement


@pytest.mark.long
def test_a_body_whose_text_no_server_can_make_is_too_large(conn: Connection, queue: Queue) -> None:
    """Once is enough: to come to the end of its gigabyte takes the server seconds."""
    queue("orders")
    statement = "INSERT INTO messages.message (queue_name, message) VALUES ('orders', %s)"
    assert state_of(conn, statement, "[" + ", ".join(["1e131071"] * 9000) + "]") == "PQ005"


def test_headers_are_bounded_in_every_way_in(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    digits = "[" + ", ".join(["1e131071"] * 60) + "]"  # of 900 bytes as jsonb, of 8 MB as text
    for statement in (
        "SELECT messages.publish('orders', '1', headers => %s)",
        "SELECT messages.publish_batch('orders', '[1]', headers => %s)",
        "SELECT messages.publish('orders', '1', dedup_key => 'k', on_conflict => 'replace', headers => %s)",
        "SELECT messages.publish_topic('shop.a', '1', headers => %s)",
        "INSERT INTO messages.message (queue_name, message, headers) VALUES ('orders', '1', %s)",
    ):
        assert state_of(conn, statement, json.dumps({"k": "x" * 70_000})) == "PQ005", statement
        assert state_of(conn, statement, f'{{"k": {digits}}}') == "PQ005", statement
        assert state_of(conn, statement, json.dumps({"k": "x" * 60_000})) is None, statement


def test_a_month_counts_as_long_as_it_can_be(shared: Connection) -> None:
    def judge(value: str, at_least: str = "0", at_most: str = "31 days") -> str | None:
        check = "SELECT messages.check_duration('delay', %s::interval, %s::interval, %s::interval)"
        return state_of(shared, check, value, at_least, at_most)

    assert judge("1 month") is judge("31 days") is judge("1 month -28 days") is judge("1 day -24 hours") is None
    assert judge("1 month -29 days") == judge("1 month 1 second") == judge("-1 us") == "PQ004"
    assert judge("100 years", at_most="100 years") is None


@pytest.mark.parametrize("column", ["lease_for", "backoff_first", "backoff_max", "dedup_window", "retention"])
def test_no_policy_in_the_table_leads_into_the_past(shared: Connection, column: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        shared.execute(
            sql.SQL("UPDATE messages.queue SET {} = '-80000 months 2400000 days 1 hour'").format(sql.Identifier(column))
        )


@pytest.mark.parametrize("moment", ["-infinity", "4714-11-24 00:00:00+00 BC"])
def test_no_row_says_a_moment_that_nobody_can_reckon_with(conn: Connection, queue: Queue, moment: str) -> None:
    """Such a row stopped maintenance and the status of all queues."""
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
        conn.execute(
            "INSERT INTO messages.message (queue_name, message, visible_at) VALUES ('orders', '1', %s)", [moment]
        )
    for column in ("visible_at", "created_at"):
        with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
            conn.execute(sql.SQL("UPDATE messages.message SET {} = %s").format(sql.Identifier(column)), [moment])
    insert = """INSERT INTO messages.message_archive (queue_name, result, message, created_at, leased_at)
                VALUES ('orders', 'success', '1', %s, %s)"""
    for created_at, leased_at in ((moment, None), ("now", moment), ("infinity", "now"), ("now", "infinity")):
        with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
            conn.execute(insert, [created_at, leased_at])


@pytest.mark.parametrize("take", ["lease", "consume", "maintenance"])
def test_a_row_with_as_many_attempts_as_there_can_be_stops_nothing(conn: Connection, queue: Queue, take: str) -> None:
    queue("orders", max_attempts=1000)
    run(conn, verbs.publish_batch("orders", [1, 2]))
    conn.execute("UPDATE messages.message SET attempts = 32767 WHERE message = '1'")
    if take == "maintenance":
        conn.execute("UPDATE messages.message SET lock_expires_at = now() - interval '1 s' WHERE message = '1'")
        assert run(conn, verbs.maintain())["archived"] == 1
    else:
        taken = sql.SQL("SELECT count(*) FROM messages.{}('orders', 10)").format(sql.Identifier(take))
        assert conn.execute(taken).fetchone() == (2,)


def test_a_row_that_is_ready_since_1970_is_leased_and_an_older_one_is_refused(conn: Connection, queue: Queue) -> None:
    queue("orders")
    insert = "INSERT INTO messages.message (queue_name, message, visible_at) VALUES ('orders', '1', %s)"
    for moment in ("0001-01-01 00:00+00", "1969-12-31 00:00+00"):
        with pytest.raises(psycopg.errors.CheckViolation, match="those that are to come since 1970"):
            conn.execute(insert, [moment])
    conn.execute(insert, ["epoch"])
    run(conn, verbs.publish("orders", 2))
    conn.execute(insert, ["epoch"])
    bodies: list[Any] = []

    def all_leased() -> bool:
        bodies.extend(message.body for message in run(conn, verbs.lease("orders")))
        return len(bodies) == 3

    until(all_leased)
    assert sorted(bodies) == [1, 1, 2]


@pytest.mark.parametrize("first", ["24 hours", "1 day"])
def test_the_longest_back_off_overflows_nothing(conn: Connection, queue: Queue, first: str) -> None:
    queue("orders", max_attempts=1000, backoff_first=first, backoff_max="30 days")
    run(conn, verbs.publish("orders", 1))
    (message,) = run(conn, verbs.lease("orders"))
    conn.execute("UPDATE messages.message SET attempts = 900")
    assert run(conn, verbs.release(message.lock_token, [message.id], back_off=True)) == [message.id]
    assert conn.execute(
        "SELECT visible_at - clock_timestamp() BETWEEN '14 days' AND '30 days' FROM messages.message"
    ).fetchone() == (True,)


@pytest.mark.parametrize("ordinal", [2**63 - 1, -1, -(2**63), 10**13])
def test_a_staged_row_is_not_placed_in_another_age(conn: Connection, queue: Queue, ordinal: int) -> None:
    queue("orders")
    assert run(conn, verbs.stage_publish("job")) == "messages.publish_stage_1"
    insert = "INSERT INTO messages.publish_stage_1 (attempt, ordinal, message) VALUES (1, %s, '1')"
    assert state_of(conn, insert, ordinal) == "23514"


@pytest.mark.parametrize("key", [None, "k"])
def test_a_row_that_is_staged_while_its_attempt_is_published_reaches_no_queue(
    connect: Callable[..., Connection], queue: Queue, key: str | None
) -> None:
    queue("orders")
    queue("others")
    publisher, late, blocker = connect(), connect(), connect(autocommit=False)
    assert run(late, verbs.stage_publish("job")) == "messages.publish_stage_1"
    insert = (
        "INSERT INTO messages.publish_stage_1 (attempt, ordinal, message, queue_name, dedup_key)"
        " VALUES (1, %s, '1', %s, %s)"
    )
    late.execute(insert, [1, "orders", key])
    # What publishes is held up after the check, where it opens the table of the messages.
    blocker.execute("LOCK TABLE messages.message IN SHARE MODE")
    winners = '[{"partition": 0, "attempt": 1, "rows": 1}]'
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(state_of, publisher, "SELECT messages.publish_staged('job', 'run', %s)", winners)
        until(
            lambda: (
                late.execute(
                    "SELECT FROM pg_locks WHERE NOT granted AND relation = 'messages.message'::regclass"
                ).rowcount
            )
        )
        late.execute(insert, [2, "others", None])
        blocker.rollback()
        assert published.result() == "PQ012"
    assert late.execute("SELECT FROM messages.message").rowcount == 0


@pytest.mark.parametrize(
    ("verb", "name", "values"),
    [
        (verbs.lease, "lease_for", [timedelta(seconds=seconds) for seconds in (-1, 0, 13 * 3600, 1e9)]),
        (verbs.lease, "max_messages", [0, -1, 10_001]),
        (verbs.consume, "max_messages", [0, -1, 10_001]),
        (verbs.lease_dead, "max_messages", [0, -1, 10_001]),
        (lambda *args, **given: verbs.publish(*args, 1, **given), "delay", [timedelta(-1), timedelta(4000)]),
        (lambda *args, **given: verbs.publish(*args, 1, **given), "expires_in", [timedelta(0), timedelta(-1)]),
        (lambda *args, **given: verbs.publish(*args, 1, **given), "priority", [10, -1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_absurd_argument_is_named_with_its_bounds(
    shared: Connection, verb: Any, name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidArgument, match=f"{name} is .* Give a"):
            run(shared, verb("orders", **{name: value}))


def test_a_number_that_is_required_is_named_when_it_is_null(shared: Connection) -> None:
    for call, name in (
        ("lease('orders', NULL)", "max_messages"),
        ("lease_dead('orders', NULL)", "max_messages"),
        ("dispatch_messages('orders', 'pack', max_open => NULL)", "max_open"),
        ("search_messages(max_messages => NULL)", "max_messages"),
        ("split_archive_log(0, 1, max_steps => NULL)", "max_steps"),
        ("audit_log(max_entries => NULL)", "max_entries"),
        ("metrics(NULL)", "max_queues"),
    ):
        with pytest.raises(psycopg.Error, match=f"^{name} is NULL\n") as refused:
            shared.execute(f"SELECT messages.{call}".encode())
        assert refused.value.sqlstate == "PQ004"


def test_an_empty_batch_is_refused(shared: Connection) -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        verbs.publish_batch("orders", [])
    with pytest.raises(psycopg.Error, match="empty or not a JSON array"):
        shared.execute("SELECT messages.publish_batch('orders', '{}')")
    with pytest.raises(InvalidArgument, match="number of bodies: 2; number of references: 1"):
        run(shared, verbs.publish_batch("orders", [1, 2], references=["a"]))


def test_a_result_that_is_none_is_refused_and_the_lease_stays(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = run(conn, verbs.lease("orders"))
    with pytest.raises(InvalidArgument, match=r"result is 'done'. Give success"):
        run(conn, verbs.archive(message.lock_token, [message.id], result="done"))
    run(conn, verbs.archive(message.lock_token, [message.id]))


def test_a_wrong_password_a_server_that_is_down_and_an_unknown_database_are_connection_errors(dsn: str) -> None:
    for wrong in ({"port": 1}, {"dbname": "no_such_database"}, {"user": "no_such_role", "password": "SECRET"}):
        with pytest.raises(ConnectionFailed, match="Check the connection") as refused:
            open_connection(dsn, **wrong)
        assert "SECRET" not in str(refused.value)
