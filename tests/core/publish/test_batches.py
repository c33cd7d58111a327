"""The end of a batch: one message, whoever dies meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import Failed, InvalidArgument, QueueNotFound, Rejected, run, verbs
from airflow_provider_pgqueue.core.errors import MessageTooLarge, PermissionDenied
from tests.waiting import until, until_leases_expire

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
BATCH = {"batch": "monday"}
NONE = {"success": 0, "failed": 0, "rejected": 0, "lock_expired": 0, "expired": 0, "cancelled": 0}

# Handles what is ready until it is told to stop or killed; every tenth message is rejected.
CONSUMER = """
import sys
from airflow_provider_pgqueue.core import Consumer, Rejected, connect
conn = connect(sys.argv[1])
consumer = Consumer(
    queue_name="orders", handle=lambda m: Rejected("a tenth") if m.body % 10 == 0 else None, batch_size=5, lease_for=0.3
)
print("ready", flush=True)
while True:
    consumer.drain(conn)
"""


@pytest.fixture
def orders(queue: Queue) -> str:
    queue("ends")
    return queue("orders", max_attempts=100)


def publish(conn: Connection, number: int, **options: Any) -> list[int]:
    return run(conn, verbs.publish_batch("orders", list(range(number)), headers=BATCH, **options))


def close(conn: Connection, **options: Any) -> bool:
    return run(conn, verbs.close_batch("orders", "monday", "ends", **options))


def look(conn: Connection) -> None:
    """Look for what is due, also if somebody did that less than a second ago."""
    conn.execute(
        "UPDATE messages.timer SET at = clock_timestamp() WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM messages.timer WHERE ids = '{}' FOR UPDATE SKIP LOCKED))"
    )
    run(conn, verbs.ready_queues(["orders"]))


def ends(conn: Connection) -> list[Any]:
    look(conn)
    return [
        body for (body,) in conn.execute("SELECT message FROM messages.message WHERE queue_name = 'ends' ORDER BY id")
    ]


def end(messages: int, **results: int) -> dict[str, Any]:
    return {"queue_name": "orders", "batch": "monday", "messages": messages, "results": NONE | results}


def archive(conn: Connection, number: int = 100, outcome: Any = None) -> None:
    held = until(lambda: run(conn, verbs.lease("orders", max_messages=number)))
    outcomes = {message.id: outcome for message in held} if outcome else None
    run(conn, verbs.archive(held[0].lock_token, [message.id for message in held], outcomes=outcomes))


def test_the_end_is_one_message_with_the_numbers_of_the_results(conn: Connection, orders: str) -> None:
    ids = publish(conn, 4) + publish(conn, 1, delay=timedelta(hours=1))
    run(conn, verbs.publish("orders", "of no batch", priority=0))
    run(conn, verbs.publish("orders", "of another", headers={"batch": "tuesday"}, priority=0))
    assert close(conn, headers={"shop": "north"})
    archive(conn, 2)
    assert ends(conn) == [], "two wait, and one is delayed"
    archive(conn, 1, Rejected("no such order"))
    archive(conn, 1, Failed("no stock"))
    assert ends(conn) == [], "one is delayed"
    run(conn, verbs.cancel("orders", ids[4:]))
    assert ends(conn) == [end(5, success=2, rejected=1, failed=1, cancelled=1)]
    assert ends(conn) == [end(5, success=2, rejected=1, failed=1, cancelled=1)]
    (message,) = run(conn, verbs.lease("ends"))
    assert (message.headers, message.reference) == ({"shop": "north"}, "monday")


def test_leased_expired_and_abandoned_messages_count_when_they_end(conn: Connection, queue: Queue, orders: str) -> None:
    run(conn, verbs.alter_queue("orders", max_attempts=1))
    publish(conn, 1, priority=9)
    publish(conn, 1, expires_in=timedelta(milliseconds=200), delay=timedelta(hours=1))
    close(conn)
    run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=200)))
    assert ends(conn) == []
    until_leases_expire(conn)
    until(lambda: ends(conn))
    assert ends(conn) == [end(2, lock_expired=1, expired=1)]


def test_ten_consumers_of_whom_some_are_killed_end_a_batch_once(conn: Connection, dsn: str, orders: str) -> None:
    with conn.transaction():
        publish(conn, 300)
        close(conn)
    consumers: list[subprocess.Popen[str]] = []

    def start() -> None:
        one = subprocess.Popen([sys.executable, "-c", CONSUMER, dsn], stdout=subprocess.PIPE, text=True)
        consumers.append(one)

    chance = random.Random(7)
    try:
        for _ in range(10):
            start()
        for one in consumers[:10]:
            one.stdout.readline()

        def is_over() -> bool:
            if (alive := [one for one in consumers if one.poll() is None]) and len(consumers) < 16:
                chance.choice(alive).kill()
                start()
            found = conn.execute("SELECT FROM messages.message WHERE queue_name = 'ends'")
            return bool(found.rowcount)

        # No session but theirs looks.
        until(is_over, pause=0.2)
    finally:
        for one in consumers:
            one.kill()
            one.communicate()
    results = dict(conn.execute("SELECT result, count(*) FROM messages.message_archive GROUP BY result").fetchall())
    assert results == {"success": 270, "rejected": 30}
    assert ends(conn) == [end(300, **results)]


def test_two_last_archives_that_do_not_see_each_other_end_it(conn: Connection, connect: Connect, orders: str) -> None:
    publish(conn, 2)
    close(conn)
    first, second = connect(autocommit=False), connect(autocommit=False)
    for session in (first, second):
        archive(session, 1)
    for session in (first, second):
        assert ends(conn) == []
        session.commit()
    assert ends(conn) == [end(2, success=2)]


def test_twenty_sessions_that_look_at_once_end_it_once(conn: Connection, connect: Connect, orders: str) -> None:
    publish(conn, 50)
    close(conn)
    archive(conn)
    sessions = [connect() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(look, sessions))
    assert ends(conn) == [end(50, success=50)]


def test_an_end_that_is_rolled_back_comes_from_another_and_nobody_waits(
    conn: Connection, connect: Connect, orders: str
) -> None:
    publish(conn, 1)
    close(conn)
    archive(conn)
    dies = connect(autocommit=False)
    assert ends(dies) == [end(1, success=1)]
    assert ends(conn) == [], "that of the other is not committed"
    dies.close()
    until(lambda: ends(conn))
    assert ends(conn) == [end(1, success=1)]


def test_a_closer_that_rolls_back_has_closed_nothing(conn: Connection, connect: Connect, orders: str) -> None:
    closer = connect(autocommit=False)
    publish(closer, 1)
    assert close(closer)
    closer.rollback()
    publish(conn, 1)
    archive(conn)
    assert ends(conn) == []
    with conn.transaction():
        publish(conn, 1)
        close(conn)
    archive(conn)
    assert ends(conn) == [end(2, success=2)]


def test_a_batch_that_was_closed_twice_ends_once_and_also_if_that_comes_late(conn: Connection, orders: str) -> None:
    publish(conn, 1)
    assert close(conn, expected=10)
    assert close(conn), "as long as it is open, the last call counts"
    archive(conn)
    assert ends(conn) == [end(1, success=1)]
    assert not close(conn)
    publish(conn, 1)
    archive(conn)
    assert ends(conn) == [end(1, success=1)], "what is published after the end is of no batch"


def test_a_batch_without_messages_ends_at_once(conn: Connection, orders: str) -> None:
    close(conn)
    assert ends(conn) == [end(0)]


def test_a_member_that_is_requeued_before_the_end_is_waited_for_and_counts_once(conn: Connection, orders: str) -> None:
    publish(conn, 2)
    archive(conn, 1, Failed("no stock"))
    run(conn, verbs.requeue_dead("orders"))
    close(conn)
    archive(conn, 1)
    assert ends(conn) == []
    archive(conn, 1)
    assert ends(conn) == [end(2, success=2)]


def test_a_member_that_is_requeued_after_the_end_ends_nothing_again(conn: Connection, orders: str) -> None:
    publish(conn, 2)
    close(conn)
    archive(conn, 2, Failed("no stock"))
    assert ends(conn) == [end(2, failed=2)]
    run(conn, verbs.requeue_dead("orders"))
    archive(conn)
    assert ends(conn) == [end(2, failed=2)]


def test_messages_whose_transaction_is_open_are_waited_for_where_they_are_expected(
    conn: Connection, connect: Connect, orders: str
) -> None:
    late = connect(autocommit=False)
    publish(late, 2)
    publish(conn, 3)
    close(conn, expected=5)
    archive(conn)
    assert ends(conn) == []
    late.commit()
    assert ends(conn) == []
    look(conn)
    archive(conn, 1)
    assert ends(conn) == []
    archive(conn, 1)
    assert ends(conn) == [end(5, success=5)]


def test_the_upkeep_ends_a_batch_of_an_empty_queue_and_forgets_it_after_a_month(conn: Connection, orders: str) -> None:
    publish(conn, 1)
    archive(conn)
    close(conn)
    run(conn, verbs.upkeep())
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [(end(1, success=1),)]
    conn.execute("UPDATE messages.batch SET ended_at = now() - interval '31 days'")
    run(conn, verbs.upkeep())
    assert conn.execute("SELECT FROM messages.batch").rowcount == 0


def test_whoever_waits_for_messages_is_rung_and_told_when_to_look_again(
    conn: Connection, connect: Connect, orders: str
) -> None:
    listener = connect()
    listener.execute("LISTEN new_message")
    (ids) = publish(conn, 1)
    run(conn, verbs.lease("orders"))
    assert [heard.payload for heard in listener.notifies(timeout=5, stop_after=1)] == [str(ids[0])]
    close(conn)
    assert [heard.payload for heard in listener.notifies(timeout=5, stop_after=1)] == ["0"]
    (waiting,) = run(conn, verbs.ready_queues(["orders"]))
    assert waiting.next_in <= timedelta(seconds=30)


def test_an_end_that_cannot_be_published_hinders_nobody_and_comes_later(conn: Connection, orders: str) -> None:
    publish(conn, 1)
    close(conn)
    archive(conn)
    run(conn, verbs.close_batch("orders", "empty", "ends"))
    run(conn, verbs.drop_queue("ends"))
    assert ends(conn) == []
    errors = conn.execute("SELECT last_error FROM messages.batch").fetchall()
    assert errors == [("queue 'ends' does not exist",)] * 2
    run(conn, verbs.create_queue("ends"))
    assert len(ends(conn)) == 2
    assert conn.execute("SELECT last_error FROM messages.batch").fetchall() == [(None,)] * 2


def test_a_batch_whose_timer_was_deleted_by_hand_ends_after_take_over(conn: Connection, orders: str) -> None:
    publish(conn, 1)
    close(conn)
    archive(conn)
    conn.execute("DELETE FROM messages.timer")
    assert ends(conn) == []
    conn.execute("SELECT messages.take_over()")
    assert ends(conn) == [end(1, success=1)]
    assert conn.execute("SELECT FROM messages.timer").rowcount == 0, "nothing is left to be done"


def test_a_batch_goes_with_its_queue(conn: Connection, orders: str) -> None:
    publish(conn, 1)
    close(conn)
    run(conn, verbs.drop_queue("orders", force=True))
    assert conn.execute("SELECT FROM messages.batch").rowcount == 0


def test_whoever_may_publish_to_both_queues_may_close_and_whoever_consumes_ends_it(
    conn: Connection, connect: Connect, orders: str
) -> None:
    name = f"closer_{uuid4().hex[:8]}"
    conn.execute(f"CREATE ROLE {name} LOGIN".encode())
    try:
        run(conn, verbs.grant_queue("orders", name, "publish"))
        session = connect(user=name)
        with pytest.raises(PermissionDenied, match="no privilege to publish on queue 'ends'"):
            close(session)
        run(conn, verbs.grant_queue("ends", name, "publish"))
        assert close(session)
        run(conn, verbs.revoke_queue("ends", name, "publish"))
        run(conn, verbs.grant_queue("orders", name, "consume"))
        assert run(session, verbs.lease("orders")) == []
        assert conn.execute("SELECT message FROM messages.message").fetchall() == [(end(0),)]
        session.close()
    finally:
        conn.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def test_errors_name_what_is_wrong(conn: Connection, orders: str) -> None:
    for call, kind, said in (
        (verbs.close_batch("nowhere", "a", "ends"), QueueNotFound, "'nowhere'"),
        (verbs.close_batch("orders", "a", "nowhere"), QueueNotFound, "'nowhere'"),
        (verbs.close_batch("orders", "", "ends"), InvalidArgument, "batch has 0 characters"),
        (verbs.close_batch("orders", "x" * 201, "ends"), InvalidArgument, "batch has 201 characters"),
        (verbs.close_batch("orders", "a", "ends", headers={"a": "x" * 70_000}), MessageTooLarge, "headers"),
    ):
        with pytest.raises(kind, match=said):
            run(conn, call)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queue_name": 5}, "queue_name is 5. Give a text"),
        ({"batch": 5}, "batch is 5. Give a text"),
        ({"batch": "\ud800"}, "half of a surrogate pair"),
        ({"batch": "a\0"}, "NUL"),
        ({"into_queue": None}, "into_queue is None. Give a text"),
        ({"expected": -1}, "expected is -1. Give a whole number from 0"),
        ({"expected": "2"}, "expected is '2'. Give a whole number"),
    ],
)
def test_a_wrong_argument_is_named_where_it_is_written(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        verbs.close_batch(**{"queue_name": "orders", "batch": "a", "into_queue": "ends"} | wrong)


def test_a_number_that_sql_refuses_is_named_too(conn: Connection, orders: str) -> None:
    with pytest.raises(psycopg.Error, match="expected is -1"):
        conn.execute("SELECT messages.close_batch('orders', 'a', 'ends', expected => -1)")


def test_a_batch_of_which_more_than_200_characters_were_written_is_published_all_the_same(
    conn: Connection, orders: str
) -> None:
    run(conn, verbs.publish("orders", 1, headers={"batch": "x" * 5000}))
    run(conn, verbs.publish("orders", 1, headers={"batch": [1, 2]}))
    run(conn, verbs.close_batch("orders", "x" * 200, "ends"))
    archive(conn)
    assert [body["messages"] for body in ends(conn)] == [1]


def test_a_look_for_an_end_reads_neither_the_queue_nor_the_archive_of_others(conn: Connection, orders: str) -> None:
    """Also with statistics of a time when the batch was nearly all that there was."""
    for _ in range(3):
        publish(conn, 5000)
    archive(conn, 10_000)
    conn.execute("ANALYZE messages.message_rows, messages.archive_rows")
    archive(conn, 5000)
    run(conn, verbs.publish_batch("orders", list(range(10_000))))
    close(conn, expected=20_000)
    conn.execute("VACUUM messages.message_rows")
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT messages.end_batches('orders')"
    for expected in (20_000, 15_000):
        ((plans,),) = conn.execute(explain).fetchall()
        buffers = plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
        assert buffers < 1500, expected
        close(conn, expected=15_000)
    publish(conn, 1)
    run(conn, verbs.close_batch("orders", "monday", "ends"))
    assert ends(conn) == [end(15_000, success=15_000)]
