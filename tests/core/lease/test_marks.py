"""Where a lease begins: marks, lanes and looks. Nothing is stranded, whatever becomes of a mark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from airflow_provider_pgqueue.core.errors import QueuePaused
from tests.waiting import until, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

pytestmark = pytest.mark.rolled_back


def lease(conn: Connection, max_messages: int = 1, **arguments: Any) -> list[Message]:
    return run(conn, verbs.lease("orders", max_messages=max_messages, **arguments))


def finish(conn: Connection, messages: list[Message]) -> None:
    if messages:
        run(conn, verbs.archive(messages[0].lock_token, [message.id for message in messages]))


def scan_again(conn: Connection) -> None:
    """Let the next lease look at all of the queue."""
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue WHERE queue_name = 'orders'")


def scan_later(conn: Connection) -> None:
    """Let nobody look at all of the queue while the test lasts."""
    conn.execute(
        "SELECT setval(scan_due, (extract(epoch FROM clock_timestamp() + interval '50 s') * 1000000)::bigint)"
        " FROM messages.queue WHERE queue_name = 'orders'"
    )


def bodies(messages: list[Message]) -> list[Any]:
    return [message.body for message in messages]


def test_a_lower_lane_is_not_touched_while_the_upper_ones_have_enough(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(10)), priority=9))
    run(conn, verbs.publish("orders", "low", priority=0))
    lease(conn, 10)
    assert conn.execute("SELECT id FROM messages.message WHERE xmax <> 0 AND priority = 0").fetchall() == []


def test_an_idle_publisher_at_a_new_priority_holds_nobody_up(conn: Connection, connect: Connect, queue: Queue) -> None:
    """Whoever publishes after it is served first, although the lower lanes always have enough."""
    queue("orders")
    run(conn, verbs.publish_batch("orders", [["low", number] for number in range(10_000)]))
    idle = connect(autocommit=False)
    run(idle, verbs.publish("orders", "idle", priority=7))
    conn.execute("SET statement_timeout = '5s'")
    run(conn, verbs.publish("orders", "next", priority=7))
    until(lambda: "next" in bodies(lease(conn)), timeout=10)
    idle.commit()
    until(lambda: "idle" in bodies(lease(conn)), timeout=10)


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_lane_whose_first_publisher_was_slow_comes_before_the_lower_ones(
    conn: Connection, connect: Connect, queue: Queue, commits: bool
) -> None:
    """A scan lets one lease look at all lanes; those after it look where the lane is open."""
    run(conn, verbs.publish_batch(queue("orders"), ["low"] * 10))
    idle = connect(autocommit=False)
    run(idle, verbs.publish("orders", "first", priority=7))
    run(conn, verbs.publish_batch("orders", ["next", "after it", "last"], priority=7))
    scan_again(conn)
    assert bodies(lease(conn)) == ["next"]
    if commits:
        idle.commit()
        scan_later(conn)
        assert bodies(lease(conn, 4)) == ["first", "after it", "last", "low"]
    else:
        idle.rollback()
        scan_again(conn)
        assert bodies(lease(conn)) == ["after it"]
        scan_later(conn)
        assert bodies(lease(conn, 2)) == ["last", "low"]


def test_an_idle_consumer_that_made_a_lane_holds_nobody_up(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", ["first", "next", "last"], priority=7))
    idle = connect(autocommit=False)
    scan_again(conn)
    assert bodies(lease(idle)) == ["first"]
    conn.execute("SET statement_timeout = '5s'")
    scan_again(conn)
    assert bodies(lease(conn)) == ["next"]
    idle.rollback()
    scan_again(conn)
    assert bodies(lease(conn)) == ["first"]


@pytest.mark.long
def test_a_publisher_with_a_long_transaction_is_seen_at_once_and_in_order(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    """While a consumer is busy with what others have published meanwhile."""
    queue("orders", notify="off")
    late = connect(autocommit=False)
    for number in range(10):
        run(late, verbs.publish_batch("orders", [["late", number * 200 + place] for place in range(200)]))
    run(conn, verbs.publish_batch("orders", [["busy", number] for number in range(6000)]))
    seen: list[tuple[float, Any]] = []
    stop = threading.Event()

    def consume() -> None:
        session = connect()
        while not stop.is_set():
            messages = lease(session, 10)
            seen.extend((time.monotonic(), message.body) for message in messages)
            finish(session, messages)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        until(lambda: len(seen) > 500)
        late.commit()
        committed = time.monotonic()
        until(lambda: sum(body[0] == "late" for _, body in seen) == 2000, timeout=20)
    finally:
        stop.set()
        consumer.join()
    came = [(at, body[1]) for at, body in seen if body[0] == "late"]
    # Within a second, where the machine has nothing else to do.
    assert came[0][0] - committed < 5
    assert [number for _, number in came] == list(range(2000))


@pytest.mark.parametrize("value", [-1, 1, 10**17])  # long ago, and ahead of the clock
def test_a_mark_and_a_look_set_to_any_value_strand_nothing(conn: Connection, queue: Queue, value: int) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(3))))
    lease(conn)
    conn.execute("SELECT setval(mark, %s) FROM messages.lane WHERE mark IS NOT NULL", [value])
    conn.execute("SELECT setval(scan_due, %s) FROM messages.queue", [value])
    until(lambda: bodies(lease(conn, 3)) == [1, 2])


USED_MARKS = """
    SELECT mark FROM (SELECT l.mark FROM messages.lane l
                      UNION ALL SELECT unnest(ARRAY[q.scan_due, q.rate_mark]) FROM messages.queue q) used
     WHERE mark IS NOT NULL
"""
DROP_MARKS = f"""
    DO $$ DECLARE sequence regclass; BEGIN
        FOR sequence IN {USED_MARKS} LOOP EXECUTE format('DROP SEQUENCE %s', sequence); END LOOP; END $$
"""


@pytest.mark.parametrize("damage", ["DELETE FROM messages.lane", "UPDATE messages.lane SET mark = NULL", DROP_MARKS])
def test_maintenance_makes_lanes_again(conn: Connection, queue: Queue, damage: str) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "high", priority=9))
    run(conn, verbs.publish("orders", "usual"))
    conn.execute(damage.encode())
    conn.execute("SELECT messages.maintain()")
    assert bodies(lease(conn, 3)) == ["high", "usual"]
    run(conn, verbs.publish("orders", "low", priority=0))
    assert bodies(lease(conn, 3)) == ["low"]


@pytest.mark.parametrize("damage", ["", DROP_MARKS], ids=["a new lane", "without marks"])
def test_two_maintenance_runs_at_once_make_one_mark_for_a_lane(
    conn: Connection, connect: Connect, queue: Queue, damage: str
) -> None:
    run(conn, verbs.publish(queue("orders", rate_limit=5), 1, priority=9))
    conn.execute(damage.encode())
    first, second = connect(autocommit=False), connect()
    first.execute("SELECT messages.scan_next('')")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(second.execute, "SELECT messages.scan_next('')")
        until_waiting(conn)
        first.commit()
        waits.result(timeout=20)
    left = f"SELECT relname FROM pg_class WHERE relname ~ '^mark_[0-9]+$' AND oid NOT IN ({USED_MARKS})"  # noqa: S608
    assert conn.execute(left.encode()).fetchall() == []


def test_a_message_that_comes_back_at_once_keeps_its_place_and_one_with_a_delay_comes_in_its_time(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", backoff_first=timedelta(milliseconds=10))
    run(conn, verbs.publish_batch("orders", list(range(20))))
    (crashed,) = lease(conn, lease_for=timedelta(milliseconds=20))
    (delayed,) = lease(conn)
    (returned,) = lease(conn)
    (failed,) = lease(conn)
    run(conn, verbs.release(delayed.lock_token, [delayed.id], delay=timedelta(milliseconds=20)))
    run(conn, verbs.release(returned.lock_token, [returned.id]))
    run(conn, verbs.release(failed.lock_token, [failed.id], back_off=True))
    assert bodies(lease(conn)) == [returned.body]
    time.sleep(0.05)
    scan_again(conn)
    *first, one, other = bodies(lease(conn, 30))
    assert first == [crashed.body, *range(4, 20)]
    assert {one, other} == {delayed.body, failed.body}


@pytest.mark.parametrize("how", ["a lease that ended", "a release"])
def test_what_comes_back_goes_before_what_was_never_leased_amid_a_batch(
    conn: Connection, queue: Queue, how: str
) -> None:
    """Where the messages of a batch are a microsecond apart, and the mark stands at one of them."""
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(1000))))
    time.sleep(0.01)
    early = lease(conn, 10, lease_for=timedelta(milliseconds=20) if how == "a lease that ended" else None)
    scan_later(conn)
    lease(conn, 300)
    lease(conn)  # leaves the mark at the last message that it found
    if how == "a release":
        run(conn, verbs.release(early[0].lock_token, [message.id for message in early]))
    else:
        time.sleep(0.05)
        scan_again(conn)
    assert bodies(lease(conn, 20)) == [*range(10), *range(311, 321)]


def test_what_leases_gave_back_goes_before_what_a_look_has_found_ready(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(20))))
    finish(conn, lease(conn, 5))
    leased = lease(conn, 5)
    conn.execute("SELECT messages.correct_marks('orders')")
    scan_later(conn)
    run(conn, verbs.release(leased[0].lock_token, [message.id for message in leased]))
    assert bodies(lease(conn, 10)) == list(range(5, 15))


def test_a_mark_that_moves_while_timers_are_read_hides_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    scan_later(conn)
    (message,) = lease(conn)
    run(conn, verbs.release(message.lock_token, [message.id]))
    until(lambda: conn.execute("SELECT FROM messages.timer WHERE ids <> '{}' AND at < clock_timestamp()").rowcount == 1)
    conn.execute(
        "SELECT setval(mark, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM messages.lane WHERE used"
    )
    # A session that began when the timer was due, and since when another one has moved the mark.
    conn.execute("SELECT messages.end_due('orders', moment => at) FROM messages.timer WHERE at < clock_timestamp()")
    assert bodies(lease(conn)) == [1]


def test_a_lease_moves_the_mark_to_the_first_message_that_it_found(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    scan_later(conn)
    recent = "SELECT FROM messages.message WHERE visible_at > clock_timestamp() - interval '10 ms'"
    until(lambda: conn.execute(recent).rowcount == 0, what="the mark to be allowed to reach it")
    assert bodies(lease(conn)) == [1]
    gap = "SELECT visible_at - messages.stored_time(mark) FROM messages.message JOIN messages.lane USING (queue_name)"
    assert (timedelta(0),) in conn.execute(gap).fetchall()


def test_a_publisher_that_commits_within_five_milliseconds_needs_no_look(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders", notify="off")
    lease(conn)
    late = connect(autocommit=False)

    def found_in_time() -> list[Message]:
        scan_later(conn)
        run(late, verbs.publish("orders", "late"))
        run(conn, verbs.publish("orders", "early"))
        early = lease(conn)
        late.commit()
        ((passed,),) = conn.execute("SELECT max(leased_at) - min(visible_at) FROM messages.message").fetchall()
        found = lease(conn)
        assert found or passed > timedelta(milliseconds=4)  # as on a busy machine
        scan_again(conn)
        for messages in (early, found, lease(conn)):
            finish(conn, messages)
        return found

    until(found_in_time)


def test_a_mark_ahead_of_the_clock_hides_nothing(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", list(range(3))))
    lease(conn)
    scan_later(conn)
    conn.execute("SELECT setval(mark, 4000000000000000) FROM messages.lane WHERE mark IS NOT NULL")
    assert bodies(lease(conn)) == [1]
    assert run(conn, verbs.consume("orders"))[0].body == 2


def test_a_look_that_is_due_after_the_clock_went_back_is_due_now(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", [0, 1]))
    lease(conn)
    time.sleep(0.01)
    conn.execute(
        "SELECT setval(mark, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM messages.lane"
        " WHERE mark IS NOT NULL"
    )
    conn.execute("SELECT setval(scan_due, 4000000000000000) FROM messages.queue")
    assert bodies(lease(conn)) == [1]


def test_a_pause_holds_where_nothing_more_may_be_leased(conn: Connection, queue: Queue) -> None:
    queue("orders", max_leased=1)
    run(conn, verbs.publish("orders", 1))
    lease(conn)
    run(conn, verbs.pause_queue("orders"))
    with pytest.raises(QueuePaused):
        lease(conn)


def test_what_others_of_a_group_hide_is_leased_at_once(conn: Connection, queue: Queue) -> None:
    """A lease that finds only messages which have to wait puts them behind and goes on."""
    queue("orders")
    run(conn, verbs.publish("orders", "a1", group_key="a"))
    run(conn, verbs.publish("orders", "b1", group_key="b"))
    assert bodies(lease(conn, 2)) == ["a1", "b1"]
    scan_later(conn)
    run(conn, verbs.publish_batch("orders", ["a2", "a3", "b2", "alone"], group_keys=["a", "a", "b", None]))
    assert bodies(lease(conn)) == ["alone"]


def test_what_was_put_behind_others_of_its_group_keeps_its_place(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "a1", group_key="a"))
    (head,) = lease(conn)
    run(conn, verbs.publish("orders", "a2", group_key="a"))
    run(conn, verbs.publish_batch("orders", ["later", "last"]))
    assert bodies(lease(conn)) == ["later"]
    finish(conn, [head])
    assert bodies(lease(conn, 2)) == ["a2", "last"]


def test_the_next_of_a_group_needs_no_look_when_a_dead_one_is_dismissed(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", ["a1", "a2"], group_keys=["a", "a"]))
    (head,) = lease(conn, 2)
    run(conn, verbs.archive(head.lock_token, [head.id], result="failed"))
    assert lease(conn) == []
    (dead,) = run(conn, verbs.lease_dead("orders"))
    scan_later(conn)
    run(conn, verbs.dismiss(dead.lock_token, [dead.id], "why"))
    assert bodies(lease(conn)) == ["a2"]


def test_functions_meet_no_trigger(conn: Connection) -> None:
    behind = """
        SELECT tgname FROM pg_trigger
         WHERE tgrelid = ANY (SELECT relid FROM pg_partition_tree('messages.message') WHERE level > 0 UNION ALL
                              SELECT relid FROM pg_partition_tree('messages.message_archive') WHERE level > 0)"""
    assert conn.execute(behind).fetchall() == []


def test_a_lease_from_a_lane_without_a_mark_ends(conn: Connection, queue: Queue) -> None:
    """Its first publisher has not committed, or somebody deleted it."""
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    conn.execute("UPDATE messages.lane SET mark = NULL WHERE queue_name = 'orders'")
    scan_later(conn)
    assert [message.body for message in lease(conn, lease_for=timedelta(milliseconds=100))] == [1]
    assert conn.execute("SELECT count(*) FROM messages.timer").fetchone() == (1,)
    until(lambda: lease(conn), what="the end of the lease")


def test_a_lease_that_finds_enough_does_not_look_where_the_group_roles_were_left_out(
    conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    scan_later(conn)
    conn.execute("SET track_functions = 'all'")
    with conn.transaction(force_rollback=True):
        conn.execute(
            "ALTER ROLE messages_limited RENAME TO limited; CREATE ROLE packer;"
            " GRANT messages_consumer TO packer; SET SESSION AUTHORIZATION packer"
        )
        assert bodies(lease(conn)) == [1]
        calls = "SELECT sum(pg_stat_get_xact_function_calls(oid)) FROM pg_proc WHERE proname = %s"
        found = [conn.execute(calls, [name]).fetchone() for name in ("take_first", "take_prepared")]
    assert found == [(1,), (None,)]
