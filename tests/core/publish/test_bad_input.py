"""Bad input gets a typed error that names the value and the fix, leaves the session usable and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    InvalidArgument,
    InvalidMessage,
    PermissionDenied,
    PgQueueError,
    QueueNotFound,
    QueuePaused,
    run,
    verbs,
)
from airflow_provider_pgqueue.core import connect as open_connection
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.core.errors import InvalidQueueName, MessageTooLarge
from airflow_provider_pgqueue.core.verbs import Statement

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
HOSTILE = [
    "", " ", "Orders", "1orders", "orders;", "../etc", 'x"; DROP TABLE messages.message; --', "o'rders", "a" * 49,
    "größe", "a b", "a\nb", "%s", "{{ 7*7 }}",
]  # fmt: skip


def usable(conn: Connection) -> bool:
    """Whether the session still works and nothing was stored."""
    return conn.execute("SELECT count(*) FROM messages.message").fetchone() == (0,)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_queue_name_is_refused_everywhere(shared: Connection, name: str) -> None:
    with pytest.raises(InvalidQueueName, match="lower-case letter"):
        run(shared, verbs.create_queue(name))
    for statement in (verbs.publish(name, 1), verbs.lease(name), verbs.consume(name)):
        with pytest.raises(QueueNotFound, match="Create it"):
            run(shared, statement)
    assert usable(shared)


def test_an_unknown_queue_is_an_error_in_every_verb(conn: Connection) -> None:
    calls: list[Statement[Any]] = [
        verbs.publish("nope", 1),
        verbs.publish_batch("nope", [1]),
        verbs.lease("nope"),
        verbs.consume("nope"),
        verbs.lease_dead("nope"),
        verbs.dead_causes("nope"),
        verbs.dead_trend("nope"),
        verbs.triage_causes("nope"),
        verbs.status("nope"),
        verbs.alter_queue("nope", paused=True),
    ]
    for verb in calls:
        with pytest.raises(QueueNotFound, match=r"queue 'nope' does not exist.*messages\.create_queue"):
            run(conn, verb)
    with pytest.raises(psycopg.Error, match="queue 'nope' does not exist"):
        conn.execute("INSERT INTO messages.message (queue_name, message) VALUES ('nope', '1')")
    assert usable(conn)


def test_a_paused_queue_takes_messages_and_gives_none(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", paused=True), 1))
    for verb in (verbs.lease("orders"), verbs.consume("orders")):
        with pytest.raises(QueuePaused, match=r"queue 'orders' is paused\. Resume it"):
            run(conn, verb)
    run(conn, verbs.alter_queue("orders", paused=False))
    assert len(run(conn, verbs.lease("orders"))) == 1


@pytest.mark.parametrize("body", ["x" * 2000, {"a": ["y" * 500] * 10}], ids=["text", "object"])
def test_a_body_that_is_too_large_is_refused_by_every_way_in(conn: Connection, queue: Queue, body: Any) -> None:
    queue("orders", max_body_bytes=1000)
    for verb in (verbs.publish("orders", body), verbs.publish_batch("orders", [1, body])):
        with pytest.raises(MessageTooLarge, match=r"queue 'orders'.*max_body_bytes is 1000") as refused:
            run(conn, verb)
        assert "xxx" not in str(refused.value)
    assert usable(conn)


@pytest.mark.parametrize(
    "body",
    [float("nan"), [float("inf")], {"a": object()}, {1, 2}, b"bytes", {("a",): 1}, "\ud800"],
    ids=["nan", "infinity", "object", "set", "bytes", "key", "surrogate"],
)
def test_what_json_cannot_say_is_refused_before_it_is_sent(body: Any) -> None:
    with pytest.raises(InvalidMessage):
        verbs.publish("orders", body)
    with pytest.raises(InvalidMessage):
        verbs.publish_batch("orders", [1, body])


@pytest.mark.parametrize("body", ["SECRET\u0000", {"SECRET\u0000": 1}], ids=["text", "key"])
def test_what_jsonb_cannot_store_is_refused_without_quoting_it(shared: Connection, body: Any) -> None:
    with pytest.raises(InvalidMessage, match="Publish JSON without") as refused:
        run(shared, verbs.publish("orders", body))
    assert "SECRET" not in str(refused.value)
    assert usable(shared)


def test_a_body_nested_too_deep_is_refused(shared: Connection) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidMessage):
        run(shared, verbs.publish("orders", deep))
    assert usable(shared)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 13 * 3600.0, 1e9], ids=str)
def test_an_absurd_duration_of_a_lease_is_refused(shared: Connection, seconds: float) -> None:
    with pytest.raises(InvalidArgument, match=r"lease_for is .* Give a duration from"):
        run(shared, verbs.lease("orders", lease_for=timedelta(seconds=seconds)))
    assert usable(shared)


@pytest.mark.parametrize(
    "arguments",
    [
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta(days=4000)},
        {"expires_in": timedelta(0)},
        {"expires_in": timedelta(seconds=-5)},
        {"priority": 10},
        {"priority": -1},
    ],
    ids=str,
)
def test_an_absurd_argument_of_publish_is_refused(shared: Connection, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))} is .* Give a"):
        run(shared, verbs.publish("orders", 1, **arguments))
    assert usable(shared)


def test_an_empty_batch_is_refused(conn: Connection, queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        verbs.publish_batch("orders", [])
    with pytest.raises(psycopg.Error, match="empty or not a JSON array"):
        conn.execute("SELECT messages.publish_batch(%s, '{}')", [queue("orders")])
    with pytest.raises(InvalidArgument, match="number of bodies: 2; number of references: 1"):
        run(conn, verbs.publish_batch("orders", [1, 2], references=["a"]))


@pytest.mark.parametrize("number", [0, -1, 10_001])
def test_an_absurd_number_of_messages_is_refused(shared: Connection, number: int) -> None:
    for verb in (
        verbs.lease("orders", max_messages=number),
        verbs.consume("orders", max_messages=number),
        verbs.lease_dead("orders", max_messages=number),
    ):
        with pytest.raises(InvalidArgument, match=f"max_messages is {number}. Give a number from 1 to 10000"):
            run(shared, verb)


def test_a_result_that_is_none_is_refused_and_the_lease_stays(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = run(conn, verbs.lease("orders"))
    assert message.lock_token
    with pytest.raises(InvalidArgument, match=r"result is 'done'. Give success"):
        run(conn, verbs.archive(message.lock_token, [message.id], result="done"))
    run(conn, verbs.archive(message.lock_token, [message.id]))


def test_a_wrong_password_a_server_that_is_down_and_an_unknown_database_are_connection_errors(dsn: str) -> None:
    for wrong in ({"port": 1}, {"dbname": "no_such_database"}, {"user": "no_such_role", "password": "SECRET"}):
        with pytest.raises(ConnectionFailed, match="Check the connection") as refused:
            open_connection(dsn, **wrong)
        assert "SECRET" not in str(refused.value)


def test_a_role_without_privilege_is_told_to_ask_for_it(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute("CREATE ROLE pgqueue_nobody")
    try:
        conn.execute("SET ROLE pgqueue_nobody")
        with pytest.raises(PermissionDenied, match="GRANT messages_publisher TO pgqueue_nobody"):
            run(conn, verbs.publish("orders", 1))
        conn.execute("RESET ROLE")
        assert usable(conn)
    finally:
        conn.execute("RESET ROLE")
        conn.execute("DROP ROLE pgqueue_nobody")


@pytest.mark.parametrize(
    "body",
    [
        "{{ 7*7 }}",
        {"__classname__": "airflow.models.Connection", "__version__": 1, "__data__": {}},
        {"__type": "dict", "__var": {}},
        {"__type": "timedelta", "__var": 5},
        "'; DROP TABLE messages.message; --",
        None,
        [],
        "",
        0,
    ],
    ids=str,
)
def test_a_body_comes_out_as_it_went_in(shared: Connection, body: Any) -> None:
    with shared.transaction(force_rollback=True):
        run(shared, verbs.publish("orders", body))
        (message,) = run(shared, verbs.lease("orders"))
    assert message.body == body
    assert type(message.body) is type(body)
    assert "DROP" not in repr(message)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])), children, max_size=3
        )
    ),
    max_leaves=10,
)


@given(body=JSON)
def test_any_json_survives_the_encoder(body: Any) -> None:
    import json

    assert json.loads(to_json(body)) == body


def test_every_error_of_the_queue_is_one_tree() -> None:
    for error in (QueueNotFound, QueuePaused, InvalidQueueName, InvalidArgument, MessageTooLarge, ConnectionFailed):
        assert issubclass(error, PgQueueError)
