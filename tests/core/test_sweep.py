"""Sweeps: an expired lease is found soon, whatever lies beside it, at a cost that follows what there is to free."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from tests.waiting import until, until_leases_expire, until_past, until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

MARKS = """SELECT messages.store_moment(mark, date_trunc('milliseconds', clock_timestamp()) + {})
             FROM messages.queue_priority, unnest(ARRAY[low_water, sweep_due]) mark"""

# What a walk over dead versions of messages adds to, and one over messages takes away from.
PASSED = """(pg_stat_get_xact_tuples_returned('messages.message_order_idx'::regclass)
             - 11 * pg_stat_get_xact_tuples_fetched('messages.message_order_idx'::regclass))"""

ORDERS = "FROM messages.queue_priority WHERE queue_name = 'orders'"

# A sweep is due then, after one that was short, and after one that was long.
SHORT_PAUSE = """SELECT messages.store_moment(sweep_due, date_trunc('milliseconds', clock_timestamp()) + %s::interval)
                   FROM messages.queue_priority"""
LONG_PAUSE = SHORT_PAUSE.replace("clock_timestamp())", "clock_timestamp()) + interval '0.5 ms'")

FETCHED = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'messages.message'::regclass"


def waiting(conn: Connection, count: int) -> None:
    """Fill the queue in a second or two."""
    conn.execute(
        "SELECT messages.publish_batch('orders', bodies)"
        "  FROM (SELECT jsonb_agg(n) AS bodies FROM generate_series(1, %s) n GROUP BY n / 5000) b",
        [count],
    )


def lease_all(conn: Connection, lease_for: str = "1 hour") -> int:
    """Lease whatever is ready without decoding it."""
    taken = 0
    some = "SELECT count(*) FROM messages.lease('orders', 10000, %s)"
    while (row := conn.execute(some, [lease_for]).fetchone()) and row[0]:
        taken += row[0]
    return taken


def end_all(conn: Connection) -> None:
    """End all leases, as if their consumers had died long ago."""
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() - interval '1 min'")


def all_ended(connect: Connect, queue: Queue, count: int) -> Connection:
    """Return a session of a queue in which so many leases have ended, none of them the last."""
    conn = connect()
    queue("orders", max_attempts=99)
    waiting(conn, count)
    lease_all(conn)
    end_all(conn)
    return conn


def late(conn: Connection) -> float:
    """Poll until a message comes, and return how many seconds after the end of its former lease that was."""
    found = until(
        lambda: conn.execute(
            """WITH former AS MATERIALIZED (SELECT id, lock_expires_at FROM messages.message
                                             WHERE lock_expires_at < clock_timestamp() + interval '1 min'),
                    again AS MATERIALIZED (SELECT id FROM messages.lease('orders', 1))
               SELECT extract(epoch FROM clock_timestamp() - f.lock_expires_at) FROM again JOIN former f USING (id)"""
        ).fetchone()
    )
    return float(found[0])


@pytest.mark.parametrize("others", [0, 100])
def test_a_message_is_visible_again_when_its_lease_ends(connect: Connect, queue: Queue, others: int) -> None:
    conn, other = connect(), connect()
    queue("orders")
    waiting(conn, others + 1)
    if others:
        assert len(run(conn, verbs.lease("orders", max_messages=others, lease_for=timedelta(hours=1)))) == others
    (first,) = run(conn, verbs.lease("orders", lease_for=timedelta(seconds=0.4)))
    is_over, again = "SELECT WHERE clock_timestamp() >= %s", []
    for _ in range(20):  # each of them sweeps, and none may put the next sweep off for longer
        again = again or run(other, verbs.lease("orders"))
        assert not again or conn.execute(is_over, [first.lock_expires_at]).rowcount
    until_past(conn, first.lock_expires_at)
    assert len(again or run(other, verbs.lease("orders"))) == 1


def test_a_short_lease_is_found_after_a_sweep_that_did_not_know_it(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect()
    queue("orders")
    waiting(conn, 1)
    assert run(conn, verbs.lease("orders", headers={"none": "has"})) == []
    conn.execute("SELECT messages.store_moment(sweep_due, clock_timestamp() + '0.9 s') FROM messages.queue_priority")
    run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=50)))
    until_leases_expire(other)
    assert len(run(other, verbs.lease("orders"))) == 1


def test_an_expired_lease_among_a_hundred_thousand_is_found_soon(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 100_000)
    (first,) = run(conn, verbs.lease("orders", lease_for=timedelta(hours=1)))
    assert lease_all(conn) == 99_999
    ends = "UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '0.1 s' WHERE id = %s"
    conn.execute(ends, [first.id])
    assert late(conn) < 2.5  # a second, and what the sweep itself takes on a loaded machine; it was 2.7 to 14 before


def test_the_cost_of_a_sweep_follows_what_it_frees(connect: Connect, queue: Queue) -> None:
    conn = connect()

    def fetched(count: int) -> int:
        waiting(conn, count)
        lease_all(conn)
        end_all(conn)
        with conn.transaction():
            before = conn.execute(FETCHED).fetchone()
            freed = conn.execute("SELECT freed FROM messages.sweep_all('orders', 0::smallint, 99)").fetchone()
            after = conn.execute(FETCHED).fetchone()
        assert freed
        assert before
        assert after
        assert freed[0] == count
        conn.execute("DELETE FROM messages.message")
        return int(after[0] - before[0])

    queue("orders", max_attempts=99)
    assert fetched(16_000) < 6 * fetched(4_000)  # linear is 4, again over what was freed is 16


def test_an_upkeep_frees_the_end_of_a_queue_first(connect: Connect, queue: Queue) -> None:
    """What it has freed and not committed, consumers have to pass over; they begin at the head."""
    conn = all_ended(connect, queue, 20_100)  # in three parts
    with conn.transaction():
        conn.execute("SELECT messages.sweep_all('orders', 0::smallint, 99)")
        order = conn.execute("SELECT cmin::text::bigint FROM messages.message ORDER BY id").fetchall()
    assert order[-1][0] < order[5_000][0] < order[0][0]


def test_who_takes_all_that_a_sweep_freed_sweeps_again_at_once(connect: Connect, queue: Queue) -> None:
    conn = all_ended(connect, queue, 5000)
    conn.execute("SELECT messages.store_moment(sweep_due, '2020-01-01') FROM messages.queue_priority")
    assert [len(run(conn, verbs.lease("orders", max_messages=100))) for _ in range(20)] == [100] * 20


def test_an_upkeep_leaves_no_expired_lease(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders", max_attempts=99)
    waiting(conn, 11_000)  # more than a sweep frees at once
    assert lease_all(conn) == 11_000
    end_all(conn)
    until(
        lambda: run(conn, verbs.lease("orders", max_messages=10))
    )  # frees some and lowers the mark to the first of them
    conn.execute("SELECT messages.upkeep()")
    left = conn.execute(
        "SELECT count(*) FILTER (WHERE lock_expires_at < clock_timestamp()),"
        "       count(lock_token) FILTER (WHERE lock_expires_at IS NULL) FROM messages.message"
    ).fetchone()
    assert left == (0, 0)


def test_marks_ahead_of_a_clock_that_went_back_hide_nothing(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 3)
    assert len(run(conn, verbs.lease("orders", max_messages=1))) == 1
    conn.execute(MARKS.format("interval '1 day'"))
    assert [row[1] for row in conn.execute("SELECT queue_name, ready FROM messages.ready_queues()")] == [2]
    assert conn.execute("SELECT messages.ring('orders', 10)").fetchone() == (2,)
    assert len(run(conn, verbs.lease("orders", max_messages=1))) == 1
    conn.execute(MARKS.format("interval '1 day'"))
    assert conn.execute("SELECT count(*) FROM messages.consume('orders', 1)").fetchone() == (1,)
    conn.execute(MARKS.format("interval '5 s'"))  # below the mark and only a sweep finds it
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp()")
    assert len(run(conn, verbs.lease("orders", max_messages=10))) == 2


@pytest.mark.parametrize("verb", ["lease", "consume"])
@pytest.mark.parametrize(("pause", "due"), [("short", "2 s"), ("short", "20 s"), ("long", "40 s")])
def test_a_long_pause_between_two_sweeps_is_kept_unless_the_clock_went_back(
    connect: Connect, queue: Queue, verb: str, pause: str, due: str
) -> None:
    leased = f"SELECT FROM messages.{verb}('orders', 10)".encode()
    stored = {"short": SHORT_PAUSE, "long": LONG_PAUSE}[pause]
    conn = connect()
    queue("orders")
    waiting(conn, 3)
    assert len(run(conn, verbs.lease("orders", max_messages=3))) == 3
    end_all(conn)
    conn.execute(MARKS.format("interval '0'"))
    conn.execute(LONG_PAUSE, ["20 s"])
    assert conn.execute(leased).rowcount == 0
    assert [row[0] for row in conn.execute("SELECT ready FROM messages.ready_queues()")] == []
    conn.execute(stored, [due])
    assert [row[0] for row in conn.execute("SELECT ready FROM messages.ready_queues()")] == [3]
    assert conn.execute(leased).rowcount == 3


def test_of_all_who_see_that_a_sweep_is_due_one_sweeps(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 1)
    assert len(run(conn, verbs.lease("orders"))) == 1
    end_all(conn)
    conn.execute("SELECT messages.store_moment(sweep_due, '2020-01-01') FROM messages.queue_priority")
    sweep = "SELECT messages.sweep_priority('orders', 0::smallint, 'infinity', 5, 100, %s) IS NOT NULL"
    for seen, swept in (("2019-01-01", False), ("2020-01-01", True), ("2020-01-01", False)):
        assert conn.execute(sweep, [seen]).fetchone() == (swept,), seen


def test_a_mark_that_others_moved_on_is_not_moved_back(connect: Connect, queue: Queue) -> None:
    conn, other, late_one = connect(), connect(autocommit=False), connect()
    queue("orders", max_leased=10)
    waiting(conn, 3)
    conn.execute("UPDATE messages.message SET visible_at = now() - interval '1 min' + id * interval '1 s'")
    conn.execute(MARKS.format("interval '-2 min'"))
    conn.execute("SELECT messages.store_moment(sweep_due, clock_timestamp() + '0.9 s') FROM messages.queue_priority")
    # It has read the mark when it comes to the count of leases.
    other.execute("SELECT pg_advisory_xact_lock(hashtextextended('messages.counted_lease.orders', 0))")
    with ThreadPoolExecutor(1) as pool:
        leased = pool.submit(run, late_one, verbs.lease("orders"))
        until_waiting(conn)
        conn.execute("SELECT messages.store_moment(low_water, now() - interval '10 s') FROM messages.queue_priority")
        other.rollback()
        assert len(leased.result()) == 1
    ahead = """SELECT messages.stored_moment(low_water) > now() - interval '40 s' FROM messages.queue_priority
                WHERE queue_name = 'orders'"""
    assert conn.execute(ahead).fetchone() == (True,)


# Many live leases -----------------------------------------------------------------------------------------------------

DUE = "SELECT messages.store_moment(sweep_due, '2020-01-01') FROM messages.queue_priority"


def fetched(conn: Connection, act: Callable[[], object]) -> int:
    """Return how many messages a call looked at."""
    with conn.transaction():
        before = (conn.execute(FETCHED).fetchone() or [0])[0]
        act()
        return int((conn.execute(FETCHED).fetchone() or [0])[0]) - int(before)


@pytest.mark.parametrize("ended", [0, 1])
def test_a_sweep_walks_once_over_live_leases(connect: Connect, queue: Queue, ended: int) -> None:
    conn, number = connect(), 6000
    queue("orders")
    waiting(conn, number)
    assert lease_all(conn) == number
    conn.execute(
        "UPDATE messages.message SET lock_expires_at = now()"
        " WHERE id IN (SELECT max(id) - 1 FROM messages.message LIMIT %s)",
        [ended],
    )
    conn.execute("SELECT messages.store_moment(low_water, now()) FROM messages.queue_priority")
    conn.execute(DUE)
    found: list[Message] = []
    # A thousand at the head may be looked at once more, for when the next sweep is due.
    assert fetched(conn, lambda: found.extend(run(conn, verbs.lease("orders")))) < 1.5 * number
    assert len(found) == ended


def test_a_sweep_finds_what_shares_a_moment_with_many_live_leases(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 2500)
    conn.execute("UPDATE messages.message SET visible_at = now() - interval '1 s' * (id % 2)")
    assert lease_all(conn) == 2500
    for former in ("min(id)", "max(id)", "max(id) - 1"):
        conn.execute(
            f"UPDATE messages.message SET lock_expires_at = now() WHERE id = (SELECT {former} FROM messages.message)"  # noqa: S608 a constant
        )
        conn.execute(DUE)
        assert len(run(conn, verbs.lease("orders"))) == 1, former


def test_the_next_sweep_is_due_when_the_first_of_many_leases_ends(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 20_000)  # so many that the pause after their sweep is longer
    assert lease_all(conn) == 20_000
    conn.execute(
        "UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '0.4 s'"
        " WHERE id = (SELECT max(id) - 1 FROM messages.message)"
    )
    conn.execute(DUE)
    assert run(conn, verbs.lease("orders")) == []
    sooner = """SELECT messages.stored_moment(sweep_due) < clock_timestamp() + interval '0.6 s'
                  FROM messages.queue_priority WHERE queue_name = 'orders'"""
    assert conn.execute(sooner).fetchone() == (True,)


def test_who_walked_in_vain_lets_the_next_lease_begin_later(connect: Connect, queue: Queue) -> None:
    conn, number = connect(), 6000
    queue("orders")
    waiting(conn, number)
    conn.execute("UPDATE messages.message SET visible_at = now() - interval '1 min'")
    assert lease_all(conn) == number
    conn.execute("SELECT messages.store_moment(low_water, now() - interval '2 min') FROM messages.queue_priority")
    conn.execute(DUE)
    sweep = "SELECT messages.sweep_priority('orders', 0::smallint, 'infinity', 5, 100, '2020-01-01', in_vain => true)"
    assert conn.execute(sweep).fetchone() == (None,)
    assert fetched(conn, lambda: run(conn, verbs.lease("orders"))) < number / 2
    behind = "SELECT now() - messages.stored_moment(low_water) FROM messages.queue_priority WHERE queue_name = 'orders'"
    assert (conn.execute(behind).fetchone() or [timedelta.max])[0] >= timedelta(seconds=5)


def test_the_mark_of_a_walk_in_vain_hides_nothing(connect: Connect, queue: Queue) -> None:
    """Neither what became ready before the mark moved, which the sweep sees, nor what does afterwards."""
    conn = connect()
    queue("orders")
    waiting(conn, 3)
    conn.execute("UPDATE messages.message SET visible_at = now() - interval '1 min' + id * interval '1 ms'")
    first, second, third = run(conn, verbs.lease("orders", max_messages=3))
    assert first.lock_token
    run(conn, verbs.release(first.lock_token, [second.id], count_attempt=False))
    sweep = "SELECT messages.sweep_priority('orders', 0::smallint, 'infinity', 5, 100, '2020-01-01', in_vain => true)"
    conn.execute(DUE)
    assert conn.execute(sweep).fetchone() != (None,)
    conn.execute("SELECT messages.store_moment(sweep_due, clock_timestamp() + '0.9 s') FROM messages.queue_priority")
    assert [message.id for message in run(conn, verbs.lease("orders"))] == [second.id]
    conn.execute(DUE)
    assert conn.execute(sweep).fetchone() == (None,)
    conn.execute("SELECT messages.store_moment(sweep_due, clock_timestamp() + '0.9 s') FROM messages.queue_priority")
    run(conn, verbs.release(first.lock_token, [third.id], count_attempt=False))
    assert [message.id for message in run(conn, verbs.lease("orders"))] == [third.id]


@pytest.mark.parametrize(
    ("took", "dead", "pause"),
    [
        *((0.1, 0, 0.8), (0.3, 0, 0.6), (0.8, 0, 0.4), (2, 0, 1), (3600, 0, 30), (0.3, None, 0.6)),
        # Over dead versions, which a held snapshot keeps.
        *((0.01, 11_000, 0.89), (0.1, 11_000, 1), (0.1, 9_000, 0.8), (2, 11_000, 20), (20, 11_000, 30)),
    ],
)
def test_the_next_sweep_is_due_a_second_after_the_last_one_began_unless_it_was_long(
    connect: Connect, queue: Queue, took: float, dead: int | None, pause: float
) -> None:
    conn = connect()
    queue("orders")
    question = f"""WITH stored AS MATERIALIZED (
            SELECT sweep_due, messages.store_sweep_due(sweep_due, clock_timestamp() - %s * interval '1 s', NULL,
                                                       {PASSED} - %s)
              FROM messages.queue_priority WHERE queue_name = 'orders')
        SELECT extract(epoch FROM messages.stored_moment(sweep_due) - clock_timestamp())::float,
               pg_sequence_last_value(sweep_due) %% 1000 = 500 FROM stored"""  # noqa: S608 a constant
    # Some times, because one that waits for a processor in between sees another pause.
    found = [row for _ in range(5) for row in conn.execute(question, [took, dead])]
    long = pause >= 1 or took > 0.45
    assert any(pause - 0.1 < due < pause + 0.1 and is_long == long for due, is_long in found), found


@pytest.mark.parametrize(("dead", "pause"), [(0, -0.6), (11_000, 0.3)])
def test_the_next_sweep_is_due_at_once_or_soon_where_more_expired(
    connect: Connect, queue: Queue, dead: int, pause: float
) -> None:
    conn = connect()
    queue("orders")
    question = f"""WITH stored AS MATERIALIZED (
            SELECT sweep_due, messages.store_sweep_due(sweep_due, now() - interval '0.6 s', now() - interval '0.6 s',
                                                       {PASSED} - %s)
              FROM messages.queue_priority WHERE queue_name = 'orders')
        SELECT extract(epoch FROM messages.stored_moment(sweep_due) - now())::float FROM stored"""  # noqa: S608 a constant
    dues = [due for _ in range(5) for (due,) in conn.execute(question, [dead])]
    assert any(pause - 0.1 < due < pause + 0.1 for due in dues), dues


@pytest.mark.parametrize(("pause", "seconds"), [(SHORT_PAUSE, 0.9), (LONG_PAUSE, 10)])
def test_nobody_begins_a_sweep_while_another_walks(connect: Connect, queue: Queue, pause: str, seconds: float) -> None:
    conn = connect()
    queue("orders")
    conn.execute(pause, ["-1 s"])
    ((begun, due, is_long),) = conn.execute(
        """WITH begun AS MATERIALIZED (
               SELECT sweep_due, messages.begin_sweep(sweep_due, messages.stored_moment(sweep_due)) AS begun
                 FROM messages.queue_priority WHERE queue_name = 'orders')
           SELECT begun, extract(epoch FROM messages.stored_moment(sweep_due) - clock_timestamp()),
                  pg_sequence_last_value(sweep_due) % 1000 = 500 FROM begun"""
    ).fetchall()
    assert begun
    assert seconds - 0.5 < float(due) < seconds + 0.1
    assert is_long == (pause == LONG_PAUSE)


@pytest.mark.parametrize("band", [False, True])
@pytest.mark.parametrize(("dead", "ended"), [(0, 1), (11_000, 1), (11_000, 150)])
def test_a_sweep_that_walked_over_dead_versions_is_followed_by_a_long_pause_and_one_that_waited_is_not(
    connect: Connect, queue: Queue, band: bool, dead: int, ended: int
) -> None:
    """Nor one that did not get to the end of what expired: the next is due at once."""
    conn, holder, slow = connect(), connect(autocommit=False), connect()
    queue("orders", max_attempts=99)
    if band:
        for priority in range(6):
            conn.execute("SELECT messages.publish('orders', '1', %s)", [priority])
        conn.execute("SELECT messages.consume('orders', 10)")
        conn.execute(DUE)
        conn.execute("SELECT messages.lease('orders')")
    holder.execute("SELECT pg_export_snapshot()")
    waiting(conn, dead)
    conn.execute("DELETE FROM messages.message")
    waiting(conn, ended)
    conn.execute("UPDATE messages.message SET lock_token = gen_random_uuid(), visible_at = now() - interval '0.1 s'")
    end_all(conn)
    conn.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END'"
    )
    conn.execute("CREATE TRIGGER wait BEFORE UPDATE ON messages.message FOR EACH ROW EXECUTE FUNCTION wait()")
    slow.execute("SELECT pg_advisory_lock(1)")
    conn.execute(DUE)
    other = connect()
    with ThreadPoolExecutor(1) as pool:
        swept = pool.submit(run, other, verbs.lease("orders", max_messages=1, topic="none.has.it"))
        until_waiting(conn)
        until_past(conn, conn.execute("SELECT clock_timestamp() + interval '60 ms'").fetchall()[0][0])
        slow.execute("SELECT pg_advisory_unlock(1)")
        assert swept.result() == []
    ((members, is_long),) = conn.execute(
        "SELECT max(cardinality(band)), bool_or(pg_sequence_last_value(sweep_due) % 1000 = 500)"
        "  FROM messages.queue_priority"
    ).fetchall()
    assert (members is not None) == band
    assert is_long == (dead > 0 and ended == 1)


@pytest.mark.parametrize("in_vain", [False, True])
def test_a_mark_ahead_of_a_clock_that_went_back_makes_no_lease_sweep_again(
    connect: Connect, queue: Queue, in_vain: bool
) -> None:
    conn = connect()
    queue("orders")
    waiting(conn, 3)
    assert len(run(conn, verbs.lease("orders", max_messages=3))) == 3
    conn.execute(MARKS.format("interval '1 hour'"))
    if in_vain:
        ahead = f"SELECT low_water {ORDERS} AND messages.stored_moment(low_water) > now()"
        assert conn.execute(ahead).rowcount == 1
        due = conn.execute(f"SELECT messages.stored_moment(sweep_due) {ORDERS}").fetchall()[0]
        conn.execute("SELECT messages.sweep_priority('orders', 0::smallint, 'infinity', 5, 100, %s, NULL, true)", due)
        assert conn.execute(ahead).rowcount == 0
    assert run(conn, verbs.lease("orders")) == []
    conn.execute(LONG_PAUSE, ["20 s"])
    number = f"SELECT pg_sequence_last_value(sweep_due) {ORDERS}"
    before = conn.execute(number).fetchall()
    assert run(conn, verbs.lease("orders")) == []
    assert conn.execute("SELECT FROM messages.consume('orders')").rowcount == 0
    assert conn.execute(number).fetchall() == before


def test_an_expired_lease_that_somebody_has_locked_makes_no_lease_sweep_again(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect(autocommit=False)
    queue("orders")
    waiting(conn, 1)
    assert len(run(conn, verbs.lease("orders"))) == 1
    end_all(conn)
    other.execute("SELECT FROM messages.message FOR UPDATE")
    conn.execute(DUE)
    assert run(conn, verbs.lease("orders")) == []
    later = f"SELECT messages.stored_moment(sweep_due) > now() - interval '30 s' {ORDERS}"
    assert conn.execute(later).fetchall() == [(True,)]
    other.rollback()
    assert len(until(lambda: run(conn, verbs.lease("orders")))) == 1


def test_a_call_does_not_find_again_what_it_leased_for_a_millisecond(connect: Connect, queue: Queue) -> None:
    conn = connect()
    queue("orders", max_attempts=1000)
    waiting(conn, 500)
    for _ in range(10):
        conn.execute(DUE)
        leased = run(conn, verbs.lease("orders", max_messages=1000, lease_for=timedelta(milliseconds=1)))
        assert len({message.id for message in leased}) == len(leased)
        conn.execute("UPDATE messages.message SET lock_expires_at = NULL, lock_token = NULL")
