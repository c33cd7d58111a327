"""A maintenance run ends what is due in short transactions, and notifies for what waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.maintenance import run_maintenance
from tests.waiting import until, until_ended, until_waiting

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

LAST = "UPDATE messages.message SET {} WHERE id = (SELECT max(id) FROM messages.message)"


def test_a_maintenance_run_finds_the_one_message_that_is_over(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=5), list(range(10))))
    for change, freed, archived in (
        ("lock_expires_at = now() - interval '1 s'", 1, 0),
        ("lock_expires_at = now() - interval '1 s', attempts = 5", 0, 1),
        ("expires_at = now() - interval '1 s'", 0, 1),
        ("lock_expires_at = now() + interval '1 h', expires_at = now() - interval '1 s'", 0, 0),
        ("visible_at = now() + interval '1 h', expires_at = now() - interval '1 s'", 0, 1),
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(LAST.format(change).encode())
            done = run(conn, verbs.maintain())
        assert (done["freed"], done["archived"]) == (freed, archived), change


def test_a_maintenance_run_archives_what_expired_behind_what_expired_in_its_group(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", on_dead_head="skip")
    run(conn, verbs.publish_batch("orders", range(4), group_keys=["a"] * 4, expires_in=timedelta(hours=1)))
    conn.execute("UPDATE messages.message SET expires_at = clock_timestamp() - interval '1 s' WHERE message <> '3'")
    assert run(conn, verbs.maintain())["archived"] == 3
    assert [message.body for message in run(conn, verbs.lease("orders", max_messages=9))] == [3]


@pytest.mark.parametrize(("call", "walks"), [("scan_next('')", 2), ("maintain()", 3)])
def test_a_maintenance_run_walks_twice_over_what_a_held_snapshot_keeps_and_once_to_note_the_depth(
    connect: Callable[[], Connection], queue: Queue, call: str, walks: int
) -> None:
    conn, holder = connect(), connect()
    queue("orders")
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM messages.message")
    for _ in range(5):
        run(conn, verbs.publish_batch("orders", list(range(1000))))
        leased = run(conn, verbs.lease("orders", max_messages=1000))
        run(conn, verbs.archive(leased[0].lock_token, [message.id for message in leased]))
    run(conn, verbs.publish_batch("orders", list(range(200))))

    def walked(statement: str) -> int:
        read = "SELECT pg_stat_get_xact_tuples_returned('messages.message_order_idx'::regclass)"
        with conn.transaction():
            ((before,),) = conn.execute(read).fetchall()
            conn.execute(statement.encode())
            ((after,),) = conn.execute(read).fetchall()
        return int(after - before)

    once = walked("SELECT min(visible_at) FROM messages.message_rows WHERE queue_name = 'orders' AND priority = 4")
    assert once > 5000
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
    # And the few that lie between the mark and the first message.
    assert walked(f"SELECT messages.{call}") < once * (walks + 0.8)


def test_a_maintenance_run_notifies_for_a_group_whose_head_somebody_deleted(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2], group_keys=["a", "a"]))
    run(conn, verbs.lease("orders"))
    conn.execute("DELETE FROM messages.message WHERE message = '1'")
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
    assert run(conn, verbs.maintain())["notified"] == 1
    assert [message.body for message in run(conn, verbs.lease("orders"))] == [2]


def test_a_maintenance_run_ends_a_pause_of_notifications_that_a_clock_which_went_back_made_long(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    queue("orders")
    conn.execute("SELECT messages.store_time('messages.notifications_paused_until', now() + interval '1 hour')")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT last_value FROM messages.notifications_paused_until").fetchone() == (0,)


@pytest.mark.parametrize("arguments", [{}, {"priority": 5}])
def test_a_publish_notifies_though_a_pause_was_stored_before_the_clock_went_back(
    conn: Connection, connect: Callable[..., Connection], queue: Queue, arguments: dict[str, Any]
) -> None:
    queue("orders")
    conn.execute("SELECT messages.store_time('messages.notifications_paused_until', now() + interval '1 hour')")
    listening = connect()
    listening.execute("LISTEN new_message")
    run(conn, verbs.publish("orders", 1, **arguments))
    assert [notify.channel for notify in listening.notifies(timeout=30, stop_after=1)] == ["new_message"]


def test_a_maintenance_run_notifies_once_for_each_message_that_waits(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    ids = [str(one) for name in ("orders", "bills") for one in run(conn, verbs.publish_batch(queue(name), range(3)))]
    listening = connect()
    listening.execute("LISTEN new_message; LISTEN done")
    assert run_maintenance(conn)["notified"] == len(ids)
    conn.execute("NOTIFY done")
    heard = []
    for notify in listening.notifies(timeout=30):
        if notify.channel == "done":
            break
        heard.append(notify.payload)
    assert sorted(heard) == sorted(ids)


ENDED = """UPDATE messages.message
              SET lock_expires_at = now() - interval '1 s' + id * interval '1 us', lock_token = gen_random_uuid(),
                  attempts = {}"""
IN_A_STEP = """SELECT pid FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE '%scan_next%' AND wait_event = 'advisory'"""
MAINTENANCE = """
import sys
import psycopg
from airflow_provider_pgqueue.core.maintenance import run_maintenance
run_maintenance(psycopg.connect(sys.argv[1], autocommit=True))
"""
LEFT = """SELECT count(*) FROM messages.message
           WHERE coalesce(lock_expires_at, expires_at) <= now() OR lock_expires_at IS NULL AND lock_token IS NOT NULL"""


def all_ended(
    conn: Connection, name: str, *, each: int = 5100, attempts: str = "1", priorities: tuple[int, ...] = (4,)
) -> int:
    """Add so many messages of each priority to a queue; all leases of all queues have ended."""
    for priority in priorities:
        conn.execute(
            "SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, %s) n), priority => %s)",
            [name, each, priority],
        )
    conn.execute(ENDED.format(attempts).encode())
    return each * len(priorities)


@pytest.mark.long
@pytest.mark.parametrize(("attempts", "key"), [("1", "freed"), ("5", "archived")])
def test_a_maintenance_run_ends_leases_in_transactions_of_five_thousand(
    conn: Connection, queue: Queue, attempts: str, key: str
) -> None:
    queue("later", max_attempts=5)
    number = all_ended(conn, queue("orders", max_attempts=5), each=2600, attempts=attempts, priorities=(3, 0))
    number += all_ended(conn, "later", each=100, attempts=attempts)
    assert run_maintenance(conn)[key] == number
    assert conn.execute(LEFT).fetchone() == (0,)
    each = conn.execute(
        "SELECT count(*) FROM (SELECT xmin FROM messages.message UNION ALL SELECT xmin FROM messages.message_archive) m"
        " GROUP BY xmin"
    ).fetchall()
    assert sum(count for (count,) in each) == number
    assert max(count for (count,) in each) <= 5000


def test_what_a_step_of_maintenance_freed_is_leased_before_the_next(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    all_ended(conn, queue("orders"))
    (first,) = conn.execute("SELECT min(id) FROM messages.message").fetchone() or (0,)
    step = run(conn, verbs.scan_next())
    assert step == {"queue_name": "orders", "freed": 5000, "archived": 0, "notified": 0}
    assert [message.id for message in run(connect(), verbs.lease("orders"))] == [first]


def test_a_step_of_maintenance_that_rolls_back_changes_nothing(conn: Connection, queue: Queue) -> None:
    number = all_ended(conn, queue("orders"))
    with conn.transaction(force_rollback=True):
        assert run(conn, verbs.scan_next())["freed"] == 5000
    assert conn.execute(LEFT).fetchone() == (number,)
    assert run_maintenance(conn)["freed"] == number
    assert conn.execute(LEFT).fetchone() == (0,)


@pytest.mark.long
def test_steps_of_two_maintenance_runs_in_turns_leave_nothing(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    number = all_ended(conn, queue("orders"), each=2600, priorities=(3, 2, 1, 0))
    places: dict[Connection, str | None] = {conn: "", connect(): ""}
    freed = 0
    while places:
        for session, place in list(places.items()):
            step = run(session, verbs.scan_next(place or ""))
            freed += step["freed"]
            places[session] = step["queue_name"]
            if step["queue_name"] is None:
                del places[session]
    assert freed == number
    assert conn.execute(LEFT).fetchone() == (0,)


def _kill_client(process: subprocess.Popen[bytes], conn: Connection) -> None:
    process.kill()


def _kill_session(process: subprocess.Popen[bytes], conn: Connection) -> None:
    conn.execute("SELECT pg_terminate_backend(%s)", conn.execute(IN_A_STEP).fetchall()[0])


def _kill_backend(process: subprocess.Popen[bytes], conn: Connection) -> None:
    ((pid,),) = conn.execute(IN_A_STEP).fetchall()
    os.kill(pid, signal.SIGKILL)
    # As after a crash of the server: it takes new sessions until it has noticed, ends them with all the others, and
    # recovers.
    until_ended(conn)


@pytest.mark.long
@pytest.mark.parametrize("kill", [_kill_client, _kill_session, _kill_backend])
def test_a_maintenance_run_that_is_killed_amid_a_step_loses_and_doubles_nothing(
    dsn: str, queue: Queue, kill: Callable[[subprocess.Popen[bytes], Connection], None]
) -> None:
    """What the first step did stays, the second is done wholly or not at all, and the next maintenance run does the
    rest."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as holder:
        number = all_ended(conn, queue("orders", max_attempts=5), attempts="CASE WHEN id % 10 = 0 THEN 5 ELSE 1 END")
        conn.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN coalesce(new, old); END'"
        )
        conn.execute(
            "CREATE TRIGGER wait BEFORE UPDATE OR DELETE ON messages.message_rows FOR EACH ROW WHEN (old.id = 5050)"
            " EXECUTE FUNCTION wait()"
        )
        holder.execute("SELECT pg_advisory_lock(1)")
        process = subprocess.Popen([sys.executable, "-c", MAINTENANCE, dsn])
        try:
            until_waiting(conn)
            assert conn.execute(LEFT).fetchone() == (number - 5000,)
            with suppress(psycopg.OperationalError):
                kill(process, conn)
        finally:
            process.kill()
            process.wait()
    again = until(lambda: answers(dsn), what="the server")
    with again:
        until(lambda: "skipped" not in run_maintenance(again), what="the step to end")
        assert again.execute(LEFT).fetchone() == (0,)
        kept = "SELECT count(*), count(DISTINCT id), bool_and((id % 10 = 0) = {}) FROM messages.{}"
        dead, left = number // 10, number - number // 10
        assert again.execute(kept.format(True, "message_archive").encode()).fetchone() == (dead, dead, True)
        assert again.execute(kept.format(False, "message").encode()).fetchone() == (left, left, True)
        leased = run(again, verbs.lease("orders", max_messages=10_000))
        assert [message.id for message in leased] == [id_ for id_ in range(1, number) if id_ % 10]
        assert {message.attempts for message in leased} == {2}


def answers(dsn: str) -> Connection | None:
    """Return a session, if the server has recovered."""
    with suppress(psycopg.OperationalError):
        return psycopg.connect(dsn, autocommit=True)
    return None
