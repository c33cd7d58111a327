"""What ends by itself: leases, delays and messages that expire. Whoever comes by ends it, once and in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import Message, run, verbs
from airflow_provider_pgqueue.core.errors import LeaseLost
from tests.core.lease.test_marks import bodies, finish, lease, scan_again, scan_later
from tests.waiting import heard, until, until_leases_expire

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)


def publish(conn: Connection, *bodies: object) -> list[int]:
    return run(conn, verbs.publish_batch("orders", bodies))


def timers(conn: Connection) -> list[tuple[UUID | None, list[int]]]:
    return conn.execute("SELECT lock_token, ids FROM messages.timer ORDER BY at, ids").fetchall()


def pass_time(conn: Connection, hours: int) -> None:
    """Let everything that will end end earlier."""
    conn.execute("UPDATE messages.timer SET at = at - %s", [hours * HOUR])
    conn.execute(
        "UPDATE messages.message_rows SET lock_expires_at = lock_expires_at - %(by)s, expires_at = expires_at - %(by)s,"
        " visible_at = visible_at - %(by)s, due_at = due_at - %(by)s",
        {"by": hours * HOUR},
    )
    conn.execute("SELECT setval(mark, 1) FROM messages.lane WHERE mark IS NOT NULL")


def expired_in_its_lease(conn: Connection, queue: Queue) -> Message:
    """Return a message that has expired while it is leased for another hour, which a scan has seen."""
    queue("orders")
    run(conn, verbs.publish("orders", 1, expires_in=HOUR))
    (message,) = lease(conn, lease_for=3 * HOUR)
    pass_time(conn, 2)
    scan_again(conn)
    assert lease(conn) == []
    return message


def ended_as(conn: Connection) -> list[str]:
    return [result for (result,) in conn.execute("SELECT result FROM messages.message_archive")]


def test_a_call_of_lease_has_one_timer_and_a_finished_lease_none(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, *range(3))
    messages = lease(conn, 3)
    assert timers(conn) == [(messages[0].lock_token, [message.id for message in messages])]
    finish(conn, messages)
    assert timers(conn) == []


@pytest.mark.parametrize("hours_later", [1, 24])
def test_what_is_left_of_a_lease_that_was_finished_in_part_comes_back(
    conn: Connection, queue: Queue, hours_later: int
) -> None:
    queue("orders")
    publish(conn, *range(4))
    messages = lease(conn, 4, lease_for=HOUR)
    finish(conn, [messages[0], messages[2]])
    pass_time(conn, hours_later)
    scan_again(conn)
    assert bodies(lease(conn, 4)) == [1, 3]


def test_what_is_left_of_a_lease_that_took_two_tries_comes_back(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", ["alone", "g1"], group_keys=[None, "g"]))
    run(conn, verbs.publish("orders", "g2", group_key="g", priority=9))
    messages = lease(conn, 2, lease_for=HOUR)  # g2 stands in the way of g1, and has to wait for it
    assert bodies(messages) == ["alone", "g1"]
    finish(conn, [messages[0]])
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn, 2)) == ["g1"]


def test_what_is_left_of_two_timers_that_ended_at_one_time_comes_back(conn: Connection, queue: Queue) -> None:
    """As after a lease that took two tries and was extended as a whole: each timer is about some of its messages."""
    queue("orders")
    publish(conn, *range(4))
    messages = lease(conn, 4, lease_for=HOUR)
    one, two, three, four = (message.id for message in messages)
    conn.execute("UPDATE messages.timer SET ids = %s", [[one, three]])
    conn.execute(
        "INSERT INTO messages.timer (queue_name, at, lock_token, ids)"
        " SELECT queue_name, at, lock_token, %s FROM messages.timer",
        [[two, four]],
    )
    finish(conn, messages[:2])
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn, 4)) == [2, 3]


def test_a_lease_that_was_extended_goes_on_and_ends(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    (message,) = lease(conn, lease_for=HOUR)
    run(conn, verbs.extend(message.lock_token, [message.id], lease_for=2 * HOUR))
    for hours, found in ((1, []), (1, [1])):
        pass_time(conn, hours)
        scan_again(conn)
        assert bodies(lease(conn)) == found


def test_a_lease_that_was_made_shorter_ends_sooner(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    (message,) = lease(conn, lease_for=3 * HOUR)
    run(conn, verbs.extend(message.lock_token, [message.id], lease_for=HOUR))
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn)) == [1]


@pytest.mark.parametrize("verb", ["lease", "consume"])
def test_what_ended_comes_back_also_in_a_queue_that_never_runs_short(conn: Connection, queue: Queue, verb: str) -> None:
    queue("orders")
    publish(conn, *range(10))
    lease(conn, lease_for=HOUR)
    pass_time(conn, 1)
    scan_again(conn)
    found = lease(conn) if verb == "lease" else run(conn, verbs.consume("orders"))
    assert bodies(found) == [0]


@pytest.mark.parametrize("verb", ["lease", "consume"])
def test_all_that_ended_comes_back_one_after_the_other_before_a_backlog_of_lower_priority(
    conn: Connection, queue: Queue, verb: str
) -> None:
    queue("orders")
    urgent = [f"urgent {number}" for number in range(20)]
    run(conn, verbs.publish_batch("orders", urgent, priority=9))
    run(conn, verbs.publish_batch("orders", range(40)))
    for _ in urgent:
        lease(conn, lease_for=HOUR)
    pass_time(conn, 1)
    scan_again(conn)
    take = verbs.lease if verb == "lease" else verbs.consume
    found = [body for _ in range(25) for body in bodies(run(conn, take("orders")))]
    assert sorted(found[:20]) == sorted(urgent)
    assert found[20:] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["lease", "consume"])
def test_what_has_just_ended_comes_back_though_no_look_is_due(conn: Connection, queue: Queue, verb: str) -> None:
    queue("orders")
    publish(conn, 1)
    lease(conn, lease_for=SOON)
    scan_later(conn)
    time.sleep(0.05)
    found = lease(conn) if verb == "lease" else run(conn, verbs.consume("orders"))
    assert bodies(found) == [1]


def test_a_delay_is_not_cut_short_by_the_timer_of_an_earlier_one(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    lease_and_release(conn, delay=SOON)
    time.sleep(0.05)
    conn.execute("UPDATE messages.timer SET at = at + interval '1 hour'")  # it is late: nobody came by meanwhile
    lease_and_release(conn, delay=9 * HOUR)
    conn.execute("UPDATE messages.timer SET at = at - interval '1 hour'")
    scan_again(conn)
    assert lease(conn) == []


def lease_and_release(conn: Connection, *, delay: timedelta) -> None:
    (message,) = lease(conn)
    run(conn, verbs.release(message.lock_token, [message.id], delay=delay))


def test_a_lease_that_begins_while_another_session_ends_what_is_due_goes_on(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders", max_attempts=1)
    publish(conn, "dies", "comes back")
    dies, comes_back = lease(conn, 2, lease_for=2 * HOUR)
    run(conn, verbs.release(comes_back.lock_token, [comes_back.id], delay=HOUR, count_attempt=False))
    pass_time(conn, 2)
    scan_later(conn)
    holds_up, ends = connect(autocommit=False), connect()
    holds_up.execute(
        "INSERT INTO messages.dead_message (id, archived_at, queue_name, result) VALUES (%s, now(), 'orders', '')",
        [dies.id],
    )
    thread = threading.Thread(target=ends.execute, args=["SELECT messages.end_due('orders')"])
    thread.start()
    until(lambda: conn.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
    (message,) = lease(conn)
    holds_up.rollback()
    thread.join()
    assert run(conn, verbs.archive(message.lock_token, [comes_back.id])) == [comes_back.id]


def test_a_lease_that_begins_and_ends_while_another_session_ends_what_is_due_is_left_to_its_own_timer(
    conn: Connection, queue: Queue
) -> None:
    """It may be the last attempt, which the other session does not know."""
    queue("orders", max_attempts=1)
    (id_,) = publish(conn, 1)
    scan_later(conn)
    ((looked_at,),) = conn.execute("SELECT clock_timestamp()").fetchall()
    lease(conn, lease_for=SOON)
    until_leases_expire(conn)
    assert conn.execute("SELECT messages.give_back('orders', %s, %s)", [[id_], looked_at]).fetchall() == [([],)]
    assert lease(conn) == []
    assert ended_as(conn) == ["lock_expired"]


def test_a_lease_that_goes_on_is_ended_by_nobody_who_took_it_for_over(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = publish(conn, 1)
    finish_later = lease(conn)
    call = (
        "SELECT archived, messages.enter('orders', %(ids)s)"
        " FROM messages.archive_ended('orders', %(ids)s, clock_timestamp())"
    )
    assert conn.execute(call, {"ids": ids}).fetchall() == [(0, [])]
    finish(conn, finish_later)


@pytest.mark.parametrize("due_since", [timedelta(seconds=1), HOUR])
def test_whoever_consumes_one_in_a_long_transaction_keeps_little_of_what_ended(
    conn: Connection, connect: Connect, queue: Queue, due_since: timedelta
) -> None:
    queue("orders")
    publish(conn, *range(100))
    for _ in range(100):
        lease(conn, lease_for=HOUR)
    conn.execute("UPDATE messages.message_rows SET lock_expires_at = now() - %s", [due_since])
    conn.execute("UPDATE messages.timer SET at = now() - %s", [due_since])
    scan_again(conn)
    idle = connect(autocommit=False)
    assert len(run(idle, verbs.consume("orders"))) == 1
    assert len([*lease(conn, 100), *lease(conn, 100)]) >= 80


def test_nobody_waits_for_whoever_ends_what_is_due(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1, 2)
    lease(conn, lease_for=HOUR)
    pass_time(conn, 1)
    ends = connect(autocommit=False)
    assert ends.execute("SELECT freed FROM messages.end_due('orders')").fetchall() == [(1,)]
    conn.execute("SET statement_timeout = '5s'")
    scan_again(conn)
    assert bodies(lease(conn, 2)) == [2]
    ends.rollback()
    scan_again(conn)
    assert bodies(lease(conn)) == [1]


def test_what_a_session_has_locked_when_its_lease_ends_comes_back_later(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    publish(conn, 1)
    lease(conn, lease_for=HOUR)
    pass_time(conn, 1)
    holds = connect(autocommit=False)
    holds.execute("SELECT FROM messages.message FOR UPDATE")
    conn.execute("SET statement_timeout = '5s'")
    scan_again(conn)
    assert lease(conn) == []
    holds.rollback()
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn)) == [1]


PLAIN = (
    "INSERT INTO messages.message (queue_name, message, expires_at) VALUES ('orders', '1', now() + interval '1 hour')"
)
EXPIRING: dict[str, Callable[[Connection], object]] = {
    "publish": lambda conn: run(conn, verbs.publish("orders", 1, expires_in=HOUR)),
    "publish_batch": lambda conn: run(conn, verbs.publish_batch("orders", [1], expires_in=HOUR)),
    "dedup_key": lambda conn: run(conn, verbs.publish("orders", 1, expires_in=HOUR, dedup_key="d")),
    "replace": lambda conn: [
        run(conn, verbs.publish("orders", 0, dedup_key="k")),
        run(conn, verbs.publish("orders", 1, expires_in=HOUR, dedup_key="k", on_conflict="replace")),
    ],
    "INSERT": lambda conn: conn.execute(PLAIN.encode()),
    "UPDATE": lambda conn: [
        run(conn, verbs.publish("orders", 1)),
        conn.execute("UPDATE messages.message SET expires_at = now() + interval '1 hour'"),
    ],
}


@pytest.mark.parametrize("who", ["lease", "maintenance"])
def test_what_expires_is_archived_whichever_way_it_came_in(conn: Connection, queue: Queue, who: str) -> None:
    queue("orders")
    for number, (way, publish_it) in enumerate(EXPIRING.items(), 1):
        publish_it(conn)
        conn.execute("SELECT messages.end_due('orders')")  # nothing is due yet
        pass_time(conn, 1)
        scan_again(conn)
        if who == "lease":
            assert lease(conn) == [], way
        else:
            run(conn, verbs.maintain())
        assert ended_as(conn) == ["expired"] * number, way


def test_what_has_expired_is_not_leased_before_anybody_looks(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1, expires_in=HOUR))
    pass_time(conn, 2)
    scan_later(conn)
    assert lease(conn) == []
    assert run(conn, verbs.consume("orders")) == []


def test_what_expires_while_it_is_leased_is_archived_when_the_lease_ends(conn: Connection, queue: Queue) -> None:
    message = expired_in_its_lease(conn, queue)
    assert ended_as(conn) == []
    pass_time(conn, 1)
    scan_again(conn)
    lease(conn)
    assert ended_as(conn) == ["lock_expired"]
    with pytest.raises(LeaseLost):
        finish(conn, [message])


def test_what_expired_while_it_was_leased_is_archived_at_once_after_a_release_with_a_delay(
    conn: Connection, queue: Queue
) -> None:
    message = expired_in_its_lease(conn, queue)
    run(conn, verbs.release(message.lock_token, [message.id], delay=HOUR))
    scan_again(conn)
    lease(conn)
    assert ended_as(conn) == ["expired"]


def test_a_delay_that_ends_before_the_commit_of_its_release_leaves_nothing_behind_the_mark(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    publish(conn, 1)
    (message,) = lease(conn)
    idle = connect(autocommit=False)
    run(idle, verbs.release(message.lock_token, [message.id], delay=SOON))
    time.sleep(0.05)
    publish(conn, 2, 3)
    time.sleep(0.05)
    assert bodies(lease(conn)) == [2]
    scan_later(conn)
    idle.commit()
    assert bodies(lease(conn, 2)) == [3, 1]


def test_the_lease_of_a_run_that_was_cleared_ends(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    (opened,) = run(conn, verbs.dispatch_messages("orders", "dag", lease_for=HOUR))
    run(conn, verbs.end_dispatch("dag", opened.run_id, "failed"))
    pass_time(conn, 1)
    conn.execute("SELECT messages.end_due('orders')")
    assert timers(conn) == []
    assert bodies(run(conn, verbs.dispatched_messages("dag", opened.run_id))) == [1]
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn)) == [1]


def test_what_comes_back_notifies(conn: Connection, connect: Connect, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    listens = connect()
    listens.execute("LISTEN new_message")
    for delay in (timedelta(0), HOUR):
        (message,) = lease(conn)
        run(conn, verbs.release(message.lock_token, [message.id], delay=delay))
        assert heard(listens) == [str(message.id)]
    pass_time(conn, 1)
    conn.execute("SELECT messages.end_due('orders')")
    assert heard(listens) == [str(message.id)]


def test_the_token_of_a_lease_that_was_given_back_ends_no_lock_of_plain_sql(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    (message,) = lease(conn, lease_for=SOON)
    until_leases_expire(conn)
    scan_again(conn)
    run(conn, verbs.scan(["orders"]))
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '1 hour'")
    with pytest.raises(LeaseLost):
        run(conn, verbs.archive(message.lock_token, [message.id]))


def test_a_delay_that_a_message_got_meanwhile_is_kept(conn: Connection, queue: Queue) -> None:
    """Between the two statements of end_due somebody may lease it, and release it with a delay."""
    queue("orders")
    publish(conn, 1)
    (message,) = lease(conn)
    run(conn, verbs.release(message.lock_token, [message.id], delay=HOUR))
    assert conn.execute("SELECT messages.enter('orders', %s)", [[message.id]]).fetchone() == ([],)
    assert lease(conn) == []


def test_a_copy_ends_leases_whose_timers_are_lost_while_they_run(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    lease(conn, lease_for=HOUR)
    conn.execute("DELETE FROM messages.timer")
    conn.execute("SELECT messages.adopt_copy()")
    pass_time(conn, 1)
    scan_again(conn)
    assert bodies(lease(conn)) == [1]
