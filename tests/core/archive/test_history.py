"""The history that maintenance records: a minute late, and every message once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound, run, verbs
from tests.archive import without_beginning

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
HOUR = timedelta(hours=1)


@pytest.fixture
def other(dsn: str) -> Iterator[Connection]:
    """A second session, with transactions."""
    with psycopg.connect(dsn) as conn:
        yield conn
        conn.rollback()


def record(conn: Connection, **arguments: Any) -> int:
    """Record the history a minute after the last time."""
    given = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    conn.execute("UPDATE messages.history_progress SET next_at = next_at - interval '1 minute'")
    return int(conn.execute(f"SELECT messages.record_history({given})".encode()).fetchone()[0])


def note(conn: Connection) -> None:
    """Count everything up to now: the first time fixes the range, and the second counts it."""
    record(conn)
    record(conn)
    conn.execute("UPDATE messages.history_progress SET counted_at = recorded_at")


def total(conn: Connection, column: str, queue_name: str = "orders") -> int:
    (number,) = conn.execute(
        f"SELECT coalesce(sum({column}), 0)::integer FROM messages.history"  # noqa: S608
        " WHERE queue_name = %s AND grain = 'minute'".encode(),
        [queue_name],
    ).fetchone()
    return int(number)


def publish_and_archive(conn: Connection, number: int, result: str = "success", **arguments: Any) -> None:
    run(conn, verbs.publish_batch("orders", list(range(number))))
    leased = run(conn, verbs.lease("orders", max_messages=number))
    run(conn, verbs.archive(leased[0].lock_token, [one.id for one in leased], result=result, **arguments))


def rows(conn: Connection, **arguments: Any) -> list[dict[str, Any]]:
    until = datetime.now(UTC) + timedelta(minutes=1)
    return run(conn, verbs.queue_history("orders", until=until, **({"since": until - HOUR} | arguments)))


def added(found: list[dict[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in found)


def test_arrivals_completions_levels_and_percentiles_are_recorded(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    publish_and_archive(conn, 20)
    publish_and_archive(conn, 2, "failed", details="no stock")
    run(conn, verbs.publish_batch("orders", [1, 2, 3]))
    run(conn, verbs.publish("orders", 4, delay=HOUR))
    run(conn, verbs.lease("orders"))
    conn.execute("SELECT messages.maintain()")
    note(conn)
    found = rows(conn)
    assert (added(found, "arrivals"), added(found, "success"), added(found, "failed")) == (26, 20, 2)
    assert (added(found, "completions"), added(found, "attempts")) == (22, 22)
    seen = [row for row in found if row["depth"]][-1]
    assert [seen[name] for name in ("depth", "ready", "leased", "delayed", "dead")] == [4, 2, 1, 1, 2]
    assert timedelta(0) <= seen["oldest_age"] < timedelta(minutes=2)
    busy = next(row for row in found if row["completions"])
    for kind in ("wait", "run"):
        numbers = [busy[f"{kind}_{name}"] for name in ("p50", "p95", "p99", "max")]
        assert numbers == sorted(numbers)
        assert timedelta(0) < numbers[-1] < timedelta(minutes=1)


def test_what_is_recorded_again_is_not_counted_again(conn: Connection, queue: Queue) -> None:
    publish_and_archive(conn, 5, queue("orders") and "success")
    for _ in range(3):
        note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (5, 5)


def test_what_maintenance_itself_archives_is_counted_once(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3], expires_in=timedelta(milliseconds=1)))
    for _ in range(3):
        conn.execute("SELECT messages.maintain()")
        note(conn)
    assert (total(conn, "arrivals"), total(conn, "expired"), total(conn, "depth")) == (3, 3, 0)


def test_what_happens_is_counted_a_minute_later(conn: Connection, queue: Queue) -> None:
    queue("orders")
    record(conn)
    publish_and_archive(conn, 5)
    for _ in range(3):  # within the minute
        conn.execute("SELECT messages.record_history()")
    assert total(conn, "arrivals") == 0
    assert record(conn) == 0
    assert record(conn) >= 1
    assert (total(conn, "arrivals"), total(conn, "success")) == (5, 5)


def test_a_transaction_that_commits_within_the_minute_is_counted(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    other.execute("SELECT messages.consume('orders', 2)")
    other.execute("SELECT messages.publish_batch('orders', '[4, 5]')")
    record(conn)
    other.commit()
    note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (5, 2)


def test_a_transaction_that_is_open_across_two_minutes_is_not_counted(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    other.execute("SELECT messages.consume('orders', 2)")
    other.execute("SELECT messages.publish_batch('orders', '[4, 5]')")
    note(conn)
    other.commit()
    note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (3, 0)
    assert rows(conn)[-1]["depth"] == 3 or rows(conn)[-2]["depth"] == 3, "levels are right whatever was missed"


def test_a_maintenance_run_that_is_killed_in_between_leaves_its_minute_to_the_next(
    conn: Connection, other: Connection, queue: Queue
) -> None:
    publish_and_archive(conn, 4, queue("orders") and "success")
    record(conn)
    record(other)
    other.rollback()
    record(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (4, 4)


def test_a_rollback_is_not_counted(conn: Connection, other: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    other.execute("SELECT messages.consume('orders'), messages.publish('orders', '1')")
    record(conn)
    other.rollback()
    note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (1, 0)


def test_two_at_once_count_everything_once(conn: Connection, other: Connection, queue: Queue) -> None:
    queue("orders")
    publish_and_archive(conn, 3)
    record(conn)
    conn.execute("UPDATE messages.history_progress SET next_at = next_at - interval '1 minute'")
    other.execute("SELECT messages.maintain()")
    assert conn.execute("SELECT messages.maintain() ? 'skipped'").fetchone() == (True,)
    conn.execute("SET lock_timeout = '10 ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("SELECT messages.record_history()")
    publish_and_archive(conn, 2)
    other.commit()
    note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (5, 5)


def test_a_maintenance_run_that_was_away_counts_what_happened_in_its_minutes(conn: Connection, queue: Queue) -> None:
    queue("orders")
    note(conn)
    conn.execute(
        "UPDATE messages.history_progress SET recorded_at = now() - interval '1 hour',"
        " counted_at = now() - interval '1 hour', begun_at = now() - interval '2 hours'"
    )
    conn.execute("DELETE FROM messages.history WHERE queue_name = ''")
    publish_and_archive(conn, 6)
    without_beginning(conn)
    conn.execute(
        "UPDATE messages.message_archive SET created_at = created_at - id * interval '9 minutes',"
        " leased_at = leased_at - id * interval '9 minutes', archived_at = archived_at - id * interval '9 minutes'"
    )
    note(conn)
    found = rows(conn, since=datetime.now(UTC) - 2 * HOUR)
    assert [row["success"] for row in found if row["success"]] == [1] * 6
    assert [row["arrivals"] for row in found if row["arrivals"]] == [1] * 6
    # Nobody looked meanwhile: levels are not known.
    assert {row["depth"] for row in found if row["success"]} == {None}
    assert [row["depth"] for row in found if row["depth"] is not None] == [0]


def test_a_lot_is_counted_in_parts_and_by_several_maintenance_runs(conn: Connection, queue: Queue) -> None:
    queue("orders")
    note(conn)  # what the other tests of this server did since it was installed, at once
    for _ in range(20):
        publish_and_archive(conn, 2)
    record(conn)
    record(conn, xids_at_once=7)
    while conn.execute("SELECT counted_xid = next_xid FROM messages.history_progress").fetchone() != (True,):
        record(conn, xids_at_once=7)
        if total(conn, "arrivals") == 40:
            break
    assert (total(conn, "arrivals"), total(conn, "success")) == (40, 40)


def test_a_clock_that_goes_back_counts_nothing_twice(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish_and_archive(conn, 3)
    note(conn)
    # As if the clock had been three days ahead until now.
    conn.execute(
        "UPDATE messages.history_progress SET recorded_at = recorded_at + interval '3 days',"
        " counted_at = counted_at + interval '3 days', next_at = next_at + interval '3 days'"
    )
    conn.execute("UPDATE messages.history SET bucket_at = bucket_at + interval '3 days' WHERE grain <> 'all'")
    conn.execute("UPDATE messages.message_archive SET archived_at = archived_at + interval '3 days'")
    publish_and_archive(conn, 2)
    note(conn)
    assert (total(conn, "arrivals"), total(conn, "success")) == (5, 5)
    assert (added(rows(conn), "arrivals"), added(rows(conn), "success")) == (2, 2)


def test_a_minute_without_a_change_has_no_row_and_is_filled(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    queue("idle")
    for _ in range(3):
        note(conn)
    busy = "SELECT DISTINCT queue_name FROM messages.history WHERE queue_name <> ''"
    assert conn.execute(busy).fetchall() == [("orders",)]
    conn.execute("DELETE FROM messages.history WHERE grain IN ('hour', 'day') OR queue_name = ''")
    conn.execute("UPDATE messages.history SET bucket_at = bucket_at - interval '5 minutes' WHERE grain = 'minute'")
    conn.execute("UPDATE messages.history_progress SET begun_at = now() - interval '10 minutes'")
    conn.execute(
        "INSERT INTO messages.history (queue_name, grain, bucket_at)"
        " SELECT '', 'minute', date_trunc('minute', now()) - n * interval '1 minute'"
        " FROM generate_series(0, 5) AS n WHERE n NOT IN (1, 2)"
    )
    found = rows(conn)
    assert len(found) in (60, 61)
    # Nothing before it began, and no level in a minute in which no maintenance looked.
    assert {row["arrivals"] for row in found[:45]} == {None}
    assert [row["depth"] for row in found if row["depth"] is not None] == [2, 2, 2, 2]
    assert run(conn, verbs.queue_history("idle"))[-1]["depth"] == 0


def test_hours_and_days_have_the_sums_of_their_minutes(conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    for result in ("success", "failed"):
        publish_and_archive(conn, 3, result)
        note(conn)
    conn.execute("UPDATE messages.history SET bucket_at = bucket_at - interval '3 days' WHERE grain <> 'all'")
    conn.execute("UPDATE messages.history_cause SET bucket_at = bucket_at - interval '3 days'")
    conn.execute("UPDATE messages.history_progress SET begun_at = begun_at - interval '4 days'")
    kept = (
        "SELECT grain, sum(arrivals), sum(success), sum(failed) FROM messages.history WHERE queue_name = 'orders'"
        " GROUP BY 1 ORDER BY 1"
    )
    assert conn.execute(kept).fetchall() == [(grain, 6, 3, 3) for grain in ("all", "day", "hour", "minute")]
    longest = "SELECT DISTINCT run_max IS NOT NULL FROM messages.history WHERE success > 0"
    assert conn.execute(longest).fetchall() == [(True,)]
    causes = conn.execute("SELECT grain, messages FROM messages.history_cause ORDER BY grain").fetchall()
    assert causes == [("day", 3), ("hour", 3), ("minute", 3)]
    # Whatever is kept, the sum is the same.
    for kept_for in ({}, {"minutes_for": timedelta(days=2)}, {"hours_for": timedelta(days=2)}):
        run(conn, verbs.alter_history(**kept_for))
        conn.execute("SELECT messages.delete_old_history()")
        week = rows(conn, since=datetime.now(UTC) - timedelta(days=6), step=timedelta(days=1))
        assert (added(week, "arrivals"), added(week, "failed")) == (6, 3)
    left = "SELECT DISTINCT grain FROM messages.history WHERE queue_name = 'orders' AND grain <> 'all'"
    assert conn.execute(left).fetchall() == [("day",)]


def test_retention_bounds_every_table(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute(
        "INSERT INTO messages.history (queue_name, grain, bucket_at)"
        " SELECT 'orders', grain, date_trunc(grain, now() - age, 'UTC')"
        " FROM unnest(ARRAY['minute', 'hour', 'day']) grain,"
        " unnest(ARRAY['6 days', '8 days', '399 days', '402 days']::interval[]) age"
    )
    conn.execute(
        "INSERT INTO messages.history_cause SELECT queue_name, grain, bucket_at, 'failed', 'x', 1 FROM messages.history"
    )
    conn.execute(
        "INSERT INTO messages.history (queue_name, grain, bucket_at)"
        " SELECT '', 'minute', date_trunc('day', now()) - n * interval '1 day' FROM generate_series(1, 10) n"
    )
    conn.execute(
        "INSERT INTO messages.audit (at, action, arguments)"
        " VALUES (now() - interval '401 days', 'old', '{}'), (now(), 'new', '{}')"
    )
    conn.execute("SELECT messages.maintain()")
    for table in ("history", "history_cause"):
        kept = conn.execute(
            f"SELECT grain, count(*) FROM messages.{table}"  # noqa: S608
            " WHERE queue_name = 'orders' AND grain <> 'all' AND bucket_at < now() - interval '5 days'"
            " GROUP BY 1 ORDER BY 1".encode()
        ).fetchall()
        assert kept == [("day", 4), ("hour", 3), ("minute", 1)]
    looked = "SELECT min(bucket_at) > now() - interval '8 days' FROM messages.history WHERE queue_name = ''"
    assert conn.execute(looked).fetchone() == (True,)
    kept = conn.execute("SELECT action FROM messages.audit WHERE action IN ('old', 'new')").fetchall()
    assert kept == [("new",)]


def test_a_time_that_cannot_be_drawn_is_refused(shared: Connection) -> None:
    wrong: list[dict[str, Any]] = [
        {"step": timedelta(seconds=30)},
        {"step": timedelta(seconds=90)},
        {"since": datetime(2002, 1, 1, tzinfo=UTC)},
        {"since": datetime(1999, 1, 1, tzinfo=UTC), "step": timedelta(days=300)},
        {"since": datetime(2102, 1, 1, tzinfo=UTC)},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidArgument):
            run(shared, verbs.queue_history("orders", **arguments))


def test_an_unknown_queue_has_no_history_and_a_dropped_one_keeps_it(conn: Connection, queue: Queue) -> None:
    with pytest.raises(QueueNotFound):
        run(conn, verbs.queue_history("nope"))
    queue("orders")
    publish_and_archive(conn, 2)
    note(conn)
    run(conn, verbs.drop_queue("orders"))
    note(conn)
    assert added(rows(conn), "success") == 2
    now = "SELECT FROM messages.history WHERE queue_name = 'orders' AND grain = 'all'"
    assert conn.execute(now).rowcount == 0


def test_days_begin_in_utc_whatever_the_clocks_of_the_session_do(conn: Connection, queue: Queue) -> None:
    queue("orders")
    conn.execute("SET TimeZone = 'Europe/Berlin'")
    year = rows(conn, since=datetime.now(UTC) - timedelta(days=400), step=timedelta(days=1))
    assert {row["bucket_at"].astimezone(UTC).hour for row in year} == {0}
    assert len(year) == len({row["bucket_at"] for row in year}) == 401
    publish_and_archive(conn, 1)
    note(conn)
    begins = "SELECT bucket_at AT TIME ZONE 'UTC' FROM messages.history WHERE grain = 'day'"
    assert {at.hour for (at,) in conn.execute(begins)} == {0}


def test_rates_and_sparklines_are_of_whole_minutes(conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish_and_archive(conn, 4)
    note(conn)
    conn.execute("UPDATE messages.history SET bucket_at = bucket_at - interval '2 minutes' WHERE grain = 'minute'")
    conn.execute("UPDATE messages.history_progress SET begun_at = now() - interval '1 hour'")
    (rate,) = run(conn, verbs.queue_rates())
    assert (rate["queue_name"], rate["arrivals"], rate["success"], rate["dead"], rate["seconds"]) == (
        "orders",
        4,
        4,
        0,
        300,
    )
    (line,) = run(conn, verbs.queue_sparklines(["orders", "nope"]))
    assert len(line["arrivals"]) in (60, 61)
    assert sum(number or 0 for number in line["success"]) == 4
    # One row with the same numbers as the history of the queue itself.
    whole = run(conn, verbs.queue_history("orders", since=line["first_at"], until=datetime.now(UTC)))
    found = whole[: len(line["depth"])]
    assert line["first_at"] == found[0]["bucket_at"]
    for name in ("arrivals", "success", "depth"):
        assert line[name] == [row[name] for row in found]
