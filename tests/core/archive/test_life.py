"""What an operator sees of one message, of those who work, and of the causes of death."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound, run, verbs
from tests.core.archive.test_history import note

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
HOUR = timedelta(hours=1)


def life(conn: Connection, message_id: int) -> list[dict[str, Any]]:
    found = run(conn, verbs.message_life(message_id))
    times = [row["at"] for row in found if row["at"]]
    assert times == sorted(times)
    return found


def entries(conn: Connection, message_id: int) -> list[str]:
    return [row["entry"] for row in life(conn, message_id)]


def test_a_message_is_followed_from_publish_to_what_repeats_it(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=2, backoff_first="1 millisecond")
    first = run(conn, verbs.publish("orders", {"secret": 1}, reference="shop-7", delay=timedelta(milliseconds=5)))
    assert entries(conn, first) == ["published", "delayed"]
    conn.execute("UPDATE messages.message SET visible_at = now()")
    (held,) = run(conn, verbs.lease("orders", locked_by="packer 1"))
    run(conn, verbs.release(held.lock_token, [first], details="no stock"))
    assert entries(conn, first) == ["published", "leased", "attempt failed", "ready again"]
    (held,) = run(conn, verbs.lease("orders", locked_by="packer 2"))
    found = life(conn, first)
    assert [(row["entry"], row["actor"], row["attempt"]) for row in found if row["entry"] == "leased"] == [
        ("leased", "packer 1", 1),
        ("leased", "packer 2", 2),
    ]
    assert [(row["entry"], row["details"]) for row in found if row["details"]] == [("attempt failed", "no stock")]
    failure = {"error": "StockError", "message": "none left", "traceback": "secret 2"}
    run(conn, verbs.archive(held.lock_token, [first], result="failed", failure=failure))
    (again,) = run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=[first]), resolved_by="ann"))
    found = life(conn, first)
    assert [row["entry"] for row in found[:3]] == ["published", "leased", "attempt failed"]
    assert [row["entry"] for row in found[3:]] == ["leased", "archived", "requeued"]
    assert (found[0]["reference"], found[4]["result"], found[4]["error"]) == ("shop-7", "failed", "StockError")
    assert (found[4]["traceback"], found[5]["actor"], found[5]["other_id"]) == ("secret 2", "ann", again.new_id)
    repeated = life(conn, again.new_id)
    assert (repeated[0]["entry"], repeated[0]["other_id"]) == ("published again", first)
    assert "'secret'" not in str(found + repeated), "the body"
    assert life(conn, 10**15) == []


def test_every_attempt_is_part_of_the_life_and_a_cause_while_it_is_retried(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=3, lease_for="50 milliseconds")
    first = run(conn, verbs.publish("orders", 1))
    failure = {"error": "StockError", "message": "none of 7 left", "traceback": "a frame"}
    (held,) = run(conn, verbs.lease("orders", locked_by="packer 1", lease_for=timedelta(minutes=1)))
    run(conn, verbs.release(held.lock_token, [first], failure=failure))
    run(conn, verbs.lease("orders", locked_by="packer 2"))
    (cause,) = run(conn, verbs.retried_causes("orders"))
    assert (cause["waiting"], cause["attempts"], cause["newest_id"]) == (1, 1, first)
    assert cause["example"] == "StockError: none of 7 left"
    conn.execute("SELECT pg_sleep(0.06); SELECT messages.maintain()")
    (held,) = run(conn, verbs.lease("orders", locked_by="packer 3", lease_for=timedelta(minutes=1)))
    found = life(conn, first)
    assert [(row["entry"], row["attempt"], row["actor"], row["traceback"]) for row in found[1:]] == [
        ("leased", 1, "packer 1", None),
        ("attempt failed", 1, "packer 1", "a frame"),
        ("leased", 3, "packer 3", None),
    ]
    assert len(run(conn, verbs.retried_causes("orders"))) == 1
    run(conn, verbs.archive(held.lock_token, [first], result="failed", failure=failure))
    assert run(conn, verbs.dead_ids(verbs.DeadFilter("orders", fingerprints=[cause["fingerprint"]]))) == [first], (
        "the cause of its death"
    )
    assert run(conn, verbs.retried_causes("orders")) == []
    conn.execute("UPDATE messages.failed_attempt SET failed_at = now() - interval '31 days'")
    conn.execute("SELECT messages.maintain()")
    assert conn.execute("SELECT FROM messages.failed_attempt").fetchall() == []


def test_the_run_of_a_dispatch_is_part_of_the_life(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    (dispatched,) = run(conn, verbs.dispatch_messages("orders", "pack", dispatched_by="triggerer"))
    run(conn, verbs.start_dispatch(dispatched.dispatch_id))
    run(conn, verbs.end_dispatch("pack", dispatched.run_id, "success"))
    found = life(conn, dispatched.ids[0])
    runs = [row for row in found if row["run_id"]]
    assert [(row["entry"], row["dag_id"], row["run_id"]) for row in runs] == [
        (entry, "pack", dispatched.run_id) for entry in ("dispatched", "run started", "run ended")
    ]
    assert "archived" in [row["entry"] for row in found]


@pytest.mark.usefixtures("dsn")
def test_workers_are_who_holds_leases_and_who_finished_something(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    queue("bills")
    run(conn, verbs.publish_batch("orders", list(range(10))))
    (held,) = run(conn, verbs.lease("orders", locked_by="slow"))
    done = run(conn, verbs.lease("orders", max_messages=4, locked_by="fast"))
    run(conn, verbs.archive(done[0].lock_token, [one.id for one in done[:3]]))
    run(conn, verbs.archive(done[0].lock_token, [done[3].id], result="failed"))
    slow, fast = run(conn, verbs.workers())
    assert [slow[name] for name in ("worker", "queue_name", "leased", "finished")] == ["slow", "orders", 1, 0]
    assert slow["leased_since"] < slow["lease_ends_at"] == held.lock_expires_at
    assert [fast[name] for name in ("worker", "leased", "finished", "dead")] == ["fast", 0, 4, 1]
    assert fast["per_second"] == pytest.approx(4 / 300)
    assert run(conn, verbs.workers("bills")) == []
    with pytest.raises(QueueNotFound):
        run(conn, verbs.workers("nope"))
    with pytest.raises(InvalidArgument):
        run(conn, verbs.workers(period=timedelta(0)))


def test_workers_are_counted_up_to_a_number_of_leases(conn: Connection, queue: Queue) -> None:
    """Of a thousand queues a hundred leases each, however many messages one call leased."""
    run(conn, verbs.publish_batch(queue("orders"), list(range(300))))
    conn.execute("INSERT INTO messages.queue (queue_name) SELECT 'q' || n FROM generate_series(1, 1000) n")
    run(conn, verbs.lease("orders", max_messages=300, locked_by="packer"))
    assert [row["leased"] for row in run(conn, verbs.workers())] == [100]
    assert [row["leased"] for row in run(conn, verbs.workers("orders"))] == [300]


def test_many_messages_that_expire_sooner_do_not_hide_a_lease(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 0))
    run(conn, verbs.lease("orders", locked_by="packer", lease_for=timedelta(hours=1)))
    run(conn, verbs.publish_batch("orders", list(range(10_000)), expires_in=timedelta(minutes=1)))
    assert [row["leased"] for row in run(conn, verbs.workers("orders"))] == [1]


@pytest.mark.usefixtures("dsn")
def test_causes_have_a_trend_a_text_and_samples(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    for details, number in (("order 17 of 'ann' has no stock", 3), ("no such shop", 1)):
        run(conn, verbs.publish_batch("orders", list(range(number))))
        held = run(conn, verbs.lease("orders", max_messages=number))
        run(conn, verbs.archive(held[0].lock_token, [one.id for one in held], result="failed", details=details))
    run(conn, verbs.dismiss_dead("orders", "known", max_messages=1))
    note(conn)
    # A fresh cause, and one that has been dying for three days.
    conn.execute(
        "INSERT INTO messages.history_cause"
        " SELECT queue_name, grain, bucket_at - n * interval '1 hour', result, fingerprint, 5"
        " FROM messages.history_cause CROSS JOIN generate_series(1, 72) AS n WHERE messages = 1 AND grain <> 'day'"
    )
    old, new = run(conn, verbs.dead_trend("orders"))
    assert (old["died"], old["trend"], old["waiting"]) == (24 * 5 + 1, "steady", 1)
    assert old["first_at"] < datetime.now(UTC) - timedelta(days=2)
    assert (new["died"], new["trend"], new["waiting"], new["result"]) == (3, "new", 2, "failed")
    assert new["pattern"] == "order # of ? has no stock"
    assert len(new["sample_ids"]) == 3
    for row in (old, new):
        assert row["series_step"] == HOUR
        assert len(row["series"]) in (24, 25)
        assert sum(row["series"]) == row["died"]
    assert [row["died"] for row in run(conn, verbs.dead_trend(max_causes=1))] == [121]
    assert run(conn, verbs.dead_trend(until=datetime.now(UTC) - timedelta(days=30))) == []


@pytest.mark.usefixtures("dsn")
def test_what_only_some_may_see_is_kept_from_the_others(conn: Connection, queue: Queue) -> None:
    for name in ("orders", "bills"):
        run(conn, verbs.publish(queue(name, max_attempts=1), 1))
        run(conn, verbs.lease(name, locked_by=name))
    ids = dict(conn.execute("SELECT queue_name, id FROM messages.message").fetchall())
    conn.execute("CREATE ROLE carol LOGIN")
    try:
        run(conn, verbs.grant_queue("orders", "carol", "observe"))
        with psycopg.connect(conn.info.dsn, user="carol", autocommit=True) as carol:
            assert [row["worker"] for row in run(carol, verbs.workers())] == ["orders"]
            assert entries(carol, ids["orders"]) == ["published", "leased"]
            assert entries(carol, ids["bills"]) == []
            assert run(carol, verbs.queue_sparklines(["bills"])) == []
            with pytest.raises(psycopg.Error, match="no privilege to observe"):
                carol.execute("SELECT messages.queue_history('bills')")
    finally:
        conn.execute("DROP OWNED BY carol")
        conn.execute("DROP ROLE carol")


def test_deaths_of_whole_hours_and_days_are_those_of_their_minutes(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute(
        "INSERT INTO messages.history_cause"
        " SELECT 'orders', 'minute', date_trunc('minute', now()) - n * interval '7 minutes',"
        " 'failed', 'f' || n % 3, 1 + n % 5"
        " FROM generate_series(1, 800) n"
    )
    for longer, shorter in (("hour", "minute"), ("day", "hour")):
        conn.execute(
            "INSERT INTO messages.history_cause SELECT queue_name, %(longer)s::text,"
            " date_trunc(%(longer)s::text, bucket_at, 'UTC'), result, fingerprint, sum(messages)"
            " FROM messages.history_cause WHERE grain = %(shorter)s GROUP BY 1, 3, 4, 5",
            {"longer": longer, "shorter": shorter},
        )
    ask = (
        "SELECT fingerprint, died, first_at, last_at FROM messages.dead_trend('orders',"
        " since => date_trunc('day', now(), 'UTC') - interval '3 days',"
        " until => now() - %s::interval, step => %s::interval)"
    )
    for ago in ("0", "30 hours 20 minutes"):
        of_minutes = conn.execute(ask, [ago, "30 minutes"]).fetchall()
        assert len(of_minutes) == 3
        for step in ("1 hour", "4 hours", "1 day"):
            assert conn.execute(ask, [ago, step]).fetchall() == of_minutes, (ago, step)


def test_what_is_made_of_hours_is_read_instead_of_their_minutes(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute(
        "INSERT INTO messages.history_cause"
        " SELECT 'orders', grain, date_trunc('hour', now(), 'UTC') - interval '2 hours', 'failed', 'f', n"
        " FROM (VALUES ('minute', 1), ('hour', 60)) AS made (grain, n)"
    )
    found = {step: run(conn, verbs.dead_trend("orders", step=timedelta(minutes=step)))[0]["died"] for step in (30, 60)}
    assert found == {30: 1, 60: 60}


def test_a_flood_of_failures_in_another_queue_hides_no_cause(conn: Connection, queue: Callable[..., str]) -> None:
    queue("orders")
    queue("flood")
    run(conn, verbs.publish("orders", 1))
    (held,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.release(held.lock_token, [held.id], failure={"error": "E"}))
    conn.execute(
        "INSERT INTO messages.failed_attempt (message_id, attempt, queue_name, fingerprint, failure)"
        " SELECT n, 1, 'flood', 'f', '{}' FROM generate_series(1000001, 1100001) n"
    )
    assert len(run(conn, verbs.retried_causes("orders"))) == 1
