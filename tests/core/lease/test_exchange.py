"""A consumer archives a batch and leases the next one in one call, with the guarantees of two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import Format
from psycopg.types.json import JsonbBinaryLoader, set_json_loads

from airflow_provider_pgqueue.core import (
    Consumer,
    Lease,
    Message,
    Outcome,
    QueuePaused,
    Rejected,
    Retry,
    Success,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.connection import JSONB, read_any_json
from airflow_provider_pgqueue.core.consumer.loop import Loop
from tests.core.consumer.test_wind_up import left, results
from tests.waiting import heard

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def consumer(handle: Callable[[Message], Any] = lambda message: None, **options: Any) -> Consumer:
    return Consumer(queue_name="orders", handle=handle, **({"batch_size": 2} | options))


def test_one_transaction_archives_a_batch_and_leases_the_next(conn: Connection, queue: Queue) -> None:
    conn.execute("CREATE TABLE did (what text, xid bigint, number int, at timestamptz DEFAULT clock_timestamp())")
    conn.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        " INSERT INTO public.did (what, xid, number) SELECT lower(TG_OP), txid_current(), count(*) FROM touched;"
        " RETURN NULL; END $$"
    )
    conn.execute(
        "CREATE TRIGGER leased AFTER UPDATE ON messages.message_rows REFERENCING NEW TABLE AS touched"
        " FOR EACH STATEMENT EXECUTE FUNCTION note()"
    )
    conn.execute(
        "CREATE TRIGGER archived AFTER DELETE ON messages.message_rows REFERENCING OLD TABLE AS touched"
        " FOR EACH STATEMENT EXECUTE FUNCTION note()"
    )
    run(conn, verbs.publish_batch(queue("orders"), list(range(5))))
    assert consumer().drain(conn) == {"success": 5}
    rows = conn.execute(
        "SELECT array_agg(what || ' ' || number ORDER BY at) FROM did WHERE number > 0 GROUP BY xid ORDER BY min(at)"
    ).fetchall()
    assert [done for (done,) in rows] == [
        ["update 2"],
        ["delete 2", "update 2"],
        ["delete 2", "update 1"],
        ["delete 1"],
    ]


def test_never_more_is_leased_than_a_batch(conn: Connection, connect: Connect, queue: Queue) -> None:
    other = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(6))))
    seen = Counter[int]()

    def handle(message: Message) -> None:
        seen[sum(leased for _, _, leased in left(other))] += 1

    consumer(handle).drain(conn)
    assert set(seen) == {2}


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_who_stops_holds_nothing_and_counts_no_attempt(conn: Connection, queue: Queue, stop_after: int) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(6))))
    seen: list[int] = []
    counts = consumer(lambda message: seen.append(message.body)).drain(conn, stop=lambda: len(seen) >= stop_after)
    assert seen == list(range(stop_after))
    assert counts["success"] == stop_after
    assert left(conn) == [(body, 0, False) for body in range(stop_after, 6)]


def test_max_messages_is_not_exceeded(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(6))))
    assert consumer().drain(conn, max_messages=3) == {"success": 3}
    assert left(conn) == [(body, 0, False) for body in range(3, 6)]


def test_a_queue_that_is_paused_meanwhile_loses_no_outcome(conn: Connection, connect: Connect, queue: Queue) -> None:
    other = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def handle(message: Message) -> Outcome:
        if message.body == 1:
            run(other, verbs.pause_queue("orders"))
        return Rejected(f"no {message.body}") if message.body else Success(output="done")

    with pytest.raises(QueuePaused):
        consumer(handle).drain(conn)
    assert results(conn) == {0: "success", 1: "rejected"}
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def test_what_was_lost_meanwhile_is_told_and_the_loop_goes_on(
    conn: Connection, connect: Connect, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    other = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def handle(message: Message) -> None:
        if message.body == 1 and message.attempts == 1:
            other.execute("UPDATE messages.message SET lock_expires_at = now() WHERE id = %s", [message.id])

    counts = consumer(handle).drain(conn)
    assert counts["lost"] == 1
    run(conn, verbs.maintain())  # which finds it for certain
    assert counts + consumer(handle).drain(conn) == {"success": 4, "lost": 1}
    assert results(conn) == dict.fromkeys(range(4), "success")
    assert "the lease of 1 message ended" in caplog.text


def test_all_of_a_batch_may_be_lost(conn: Connection, connect: Connect, queue: Queue) -> None:
    other = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(2))))

    def handle(message: Message) -> None:
        if message.body == 1 and message.attempts == 1:
            other.execute("UPDATE messages.message SET lock_expires_at = now()")

    counts = consumer(handle).drain(conn)
    assert counts["lost"] == 2
    run(conn, verbs.maintain())
    assert counts + consumer(handle).drain(conn) == {"success": 2, "lost": 2}


def test_an_outcome_that_cannot_be_kept_fails_its_message_alone(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    handle = {1: Success(output="y" * 70000), 2: Retry(timedelta(hours=1))}
    assert consumer(lambda message: handle.get(message.body)).drain(conn) == {"success": 2, "failed": 1, "retried": 1}
    assert results(conn) == {0: "success", 1: "failed", 3: "success"}


def test_the_next_batch_goes_back_without_an_attempt_if_the_callback_raises(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def on_batch(counts: Counter[str]) -> None:
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        consumer().drain(conn, on_batch=on_batch)
    assert results(conn) == {0: "success", 1: "success"}
    assert left(conn) == [(2, 0, False), (3, 0, False)]

    def on_lease(lease: Lease) -> None:
        raise KeyError("of the caller")

    with Loop(consumer(), conn, on_lease=on_lease) as loop, pytest.raises(KeyError, match="of the caller"):
        loop.drain()
    assert left(conn) == [(2, 0, False), (3, 0, False)]


def test_a_group_keeps_its_order_and_the_archive_frees_its_next_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(6)), group_keys=["a"] * 6))
    seen: list[int] = []
    consumer(lambda message: seen.append(message.body), batch_size=10).drain(conn)
    assert seen == list(range(6))


@pytest.mark.parametrize("max_messages", [1, 2])
def test_the_next_of_a_group_notifies_unless_the_call_leases_it_itself(
    connect: Connect, queue: Queue, max_messages: int
) -> None:
    conn, listener = connect(), connect()
    _, second = run(conn, verbs.publish_batch(queue("orders"), ["first", "second"], group_keys=["a", "a"]))
    (first,) = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.publish("orders", "urgent", priority=9))
    listener.execute("LISTEN new_message")
    call = "SELECT (leased).id FROM messages.archive_and_lease(%s, %s, NULL, 'orders', %s)"
    leased = conn.execute(call, [first.lock_token, [first.id], max_messages]).fetchall()
    assert ((second,) in leased) == (max_messages == 2)
    assert heard(listener) == [str(second)] * (max_messages == 1)


def test_a_queue_with_max_leased_is_leased_from_in_a_call_of_its_own(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_leased=2), list(range(5))))
    assert not Loop(consumer(), conn).can_exchange
    assert consumer(batch_size=5).drain(conn) == {"success": 5}


def test_in_the_callers_transaction_an_error_undoes_no_outcome(connect: Connect, queue: Queue) -> None:
    conn = connect(autocommit=False)
    run(conn, verbs.publish_batch(queue("orders"), list(range(3))))
    assert not Loop(consumer(), conn).can_exchange
    assert consumer().drain(conn) == {"success": 3}
    conn.rollback()
    assert left(conn) == []


def test_one_bad_body_spoils_no_other(conn: Connection, queue: Queue) -> None:
    queue("orders")
    for body in ("1", "9" * 5000, '{"deep": [1, "ü"]}', "null"):
        conn.execute("SELECT messages.publish('orders', %s::jsonb)", [body])
    seen: list[Any] = []
    counts = consumer(lambda message: seen.append(message.body), batch_size=10).drain(conn)
    assert counts == {"success": 3, "rejected": 1}
    assert seen == [1, {"deep": [1, "ü"]}, None]


def test_a_drain_leaves_alone_how_the_connection_reads_json(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    before = conn.adapters.get_loader(JSONB, Format.BINARY)
    assert consumer().drain(conn) == {"success": 1}
    assert conn.adapters.get_loader(JSONB, Format.BINARY) is before


def test_a_message_reads_as_the_verb_reads_it(conn: Connection, queue: Queue) -> None:
    read_any_json(conn)
    options: Any = {"headers": {"h": ["x"]}, "topics": ["a.b"], "group_keys": ["g"]}
    run(conn, verbs.publish_batch(queue("orders"), [{"a": 1.5}], **options))
    (one,) = Loop(consumer(handled_by="me"), conn).lease(1)
    run(conn, verbs.release(one.lock_token, [one.id], count_attempt=False))
    (two,) = run(conn, verbs.lease("orders"))
    shown = [name for name in Message.__slots__ if name not in ("lock_token", "lock_expires_at")]
    assert [getattr(one, name) for name in shown] == [getattr(two, name) for name in shown]
    assert type(one) is Message
    assert type(one.lock_token) is type(two.lock_token)
    assert one.lock_expires_at is not None


@pytest.mark.parametrize("how", ["loads", "loader"])
def test_who_chose_how_json_is_read_gets_it_so(conn: Connection, queue: Queue, how: str) -> None:
    if how == "loads":
        set_json_loads(lambda data: ("mine", json.loads(data)), conn)
    else:

        class Mine(JsonbBinaryLoader):
            def load(self, data: Any) -> Any:
                return ("mine", super().load(data))

        conn.adapters.register_loader("jsonb", Mine)
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    seen: list[Any] = []
    consumer(lambda message: seen.append(message.body)).drain(conn)
    assert seen == [("mine", 1), ("mine", 2)]
