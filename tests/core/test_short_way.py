"""What a lease may not do in one statement takes the long way, also where all leases before it took the short one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, QueuePaused, run, verbs
from tests.waiting import until_leases_expire, until_waiting

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

NEXT_SWEEP = "SELECT messages.store_moment(sweep_due, clock_timestamp() + %s::interval) FROM messages.queue_priority"


def busy(conn: Connection, queue: Queue, **policy: Any) -> list[int]:
    """Fill a queue whose next leases go the short way, and return the ids of what is left."""
    queue("orders", **policy)
    ids = run(conn, verbs.publish_batch("orders", list(range(30))))
    # Further apart than the mark is exact.
    conn.execute("UPDATE messages.message SET visible_at = now() - interval '1 min' + id * interval '1 ms'")
    for _ in range(3):  # the first finds no mark, the second sweeps
        assert len(run(conn, verbs.lease("orders"))) == 1
    conn.execute(NEXT_SWEEP, ["0.09 s"])
    return ids[3:]


def leased(conn: Connection, max_messages: int = 1, **arguments: Any) -> list[int]:
    return [one.id for one in run(conn, verbs.lease("orders", max_messages=max_messages, **arguments))]


def test_it_leases_the_oldest_under_one_token_for_as_long_as_the_queue_says(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue, lease_for=timedelta(minutes=7), max_attempts=3)
    found = run(conn, verbs.lease("orders", max_messages=5, locked_by="packer"))
    assert [one.id for one in found] == ids[:5]
    assert len({one.lock_token for one in found}) == 1
    assert {(one.attempts, one.max_attempts) for one in found} == {(1, 3)}
    row = conn.execute(
        "SELECT DISTINCT locked_by, lock_expires_at - leased_at FROM messages.message WHERE id = ANY (%s)", [ids[:5]]
    ).fetchall()
    assert row == [("packer", timedelta(minutes=7))]


def test_concurrent_batches_lie_one_behind_the_other(connect: Callable[..., Connection], queue: Queue) -> None:
    conn, slow = connect(), connect()
    ids = busy(conn, queue)
    conn.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END'"
    )
    conn.execute("CREATE TRIGGER wait BEFORE UPDATE ON messages.message FOR EACH ROW EXECUTE FUNCTION wait()")
    slow.execute("SELECT pg_advisory_lock(1)")
    conn.execute(NEXT_SWEEP, ["0.3 s"])
    with ThreadPoolExecutor(2) as pool:
        batches = []
        for sessions in (1, 2):
            batches.append(pool.submit(leased, connect(), 5))
            until_waiting(conn, sessions=sessions)
        slow.execute("SELECT pg_advisory_unlock(1)")
        assert [batch.result() for batch in batches] == [ids[:5], ids[5:10]]


def test_a_batch_continues_in_lower_priorities_under_the_same_token(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue)
    low = run(conn, verbs.publish_batch("orders", [1, 2, 3], priority=-1))
    found = run(conn, verbs.lease("orders", max_messages=29))
    assert [one.id for one in found] == [*ids, *low[:2]]
    assert len({one.lock_token for one in found}) == 1
    assert leased(conn, 10) == low[2:]


def test_a_new_higher_priority_comes_first(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue)
    high = run(conn, verbs.publish("orders", "urgent", priority=1))
    assert leased(conn, 2) == [high, ids[0]]


def test_it_moves_the_mark_to_where_the_ready_messages_begin(conn: Connection, queue: Queue) -> None:
    busy(conn, queue)
    conn.execute("SELECT messages.store_moment(low_water, now() - interval '2 min') FROM messages.queue_priority")
    leased(conn)
    mark = "SELECT now() - messages.stored_moment(low_water) FROM messages.queue_priority WHERE queue_name = 'orders'"
    assert (conn.execute(mark).fetchone() or [timedelta.max])[0] < timedelta(seconds=90)


@pytest.mark.parametrize("due", ["-2 s", "1 day"])  # it was due a second ago; the clock went back
def test_a_queue_that_is_never_empty_finds_its_expired_leases(conn: Connection, queue: Queue, due: str) -> None:
    ids = busy(conn, queue)
    assert leased(conn, 2) == ids[:2]
    assert leased(conn) == [ids[2]]
    conn.execute("UPDATE messages.message SET lock_expires_at = now() - interval '1 s' WHERE id = %s", [ids[0]])
    conn.execute(NEXT_SWEEP, [due])
    assert leased(conn) == [ids[3]]
    assert leased(conn) == [ids[0]]


def test_a_lease_of_less_than_a_second_is_swept_when_it_ends(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue, lease_for=timedelta(milliseconds=50), max_attempts=99)
    conn.execute("DELETE FROM messages.message WHERE lock_expires_at IS NOT NULL")
    assert leased(conn, len(ids)) == ids
    until_leases_expire(conn)
    assert leased(conn) == [ids[0]]


def test_what_is_delayed_or_too_late_is_passed_over(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue)
    conn.execute("UPDATE messages.message SET expires_at = now() WHERE id = %s", [ids[0]])
    conn.execute("UPDATE messages.message SET visible_at = now() + interval '1 hour' WHERE id = %s", [ids[1]])
    assert leased(conn, 2) == ids[2:4]


def test_a_pause_holds_at_once(conn: Connection, queue: Queue) -> None:
    busy(conn, queue)
    run(conn, verbs.pause_queue("orders"))
    with pytest.raises(QueuePaused):
        leased(conn)


def test_a_limit_of_leases_holds(conn: Connection, queue: Queue) -> None:
    busy(conn, queue, max_leased=5)
    assert len(leased(conn, 1)) == 1
    assert len(leased(conn, 1)) == 1
    assert leased(conn, 1) == []


def test_the_arguments_of_a_call_count(conn: Connection, queue: Queue) -> None:
    busy(conn, queue)
    topic = run(conn, verbs.publish("orders", 1, topic="shop.order"))
    headers = run(conn, verbs.publish("orders", 1, headers={"kind": "refund"}))
    assert leased(conn, 2, topic="shop.*") == [topic]
    assert leased(conn, 2, headers={"kind": "refund"}) == [headers]
    (message,) = run(conn, verbs.lease("orders", lease_for=timedelta(hours=2)))
    row = conn.execute(
        "SELECT lock_expires_at - leased_at FROM messages.message WHERE id = %s", [message.id]
    ).fetchone()
    assert row == (timedelta(hours=2),)


@pytest.mark.parametrize("number", [-1, 0, 10_001])
def test_a_number_out_of_range_is_refused(conn: Connection, queue: Queue, number: int) -> None:
    busy(conn, queue)
    with pytest.raises(InvalidArgument):
        leased(conn, number)


def test_a_lease_that_finds_nothing_walks_once_over_many_live_leases(conn: Connection, queue: Queue) -> None:
    ids = busy(conn, queue)
    assert leased(conn, len(ids)) == ids
    conn.execute(NEXT_SWEEP, ["0.9 s"])  # as after a sweep that had to walk over many
    read = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'messages.message'::regclass"
    with conn.transaction():
        before = (conn.execute(read).fetchone() or [0])[0]
        assert leased(conn) == []
        after = (conn.execute(read).fetchone() or [0])[0]
    assert len(ids) <= after - before < 2 * len(ids)


def test_a_lease_goes_the_short_way_also_after_a_walk_over_dead_versions(conn: Connection, queue: Queue) -> None:
    busy(conn, queue)
    # As store_sweep_due stores it: the half millisecond tells.
    after_a_long_walk = "SELECT messages.store_moment(sweep_due, date_trunc('second', now()) + interval '20.0005 s')"
    looks = "SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'messages.queue_priority'::regclass"
    counted = []
    for due in (NEXT_SWEEP.replace("%s", "'0.09 s'"), f"{after_a_long_walk} FROM messages.queue_priority"):
        conn.execute(due.encode())
        with conn.transaction():
            before = (conn.execute(looks).fetchone() or [0])[0]
            assert len(leased(conn)) == 1
            counted.append((conn.execute(looks).fetchone() or [0])[0] - before)
    assert counted == [1, 1]
