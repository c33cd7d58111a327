"""The archive over time: partitions ahead, retention."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, run, verbs
from tests.archive import without_beginning
from tests.waiting import until_waiting

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def partitions(conn: Connection) -> list[tuple[str, Any, Any]]:
    return conn.execute("SELECT partition::text, first_at, end_at FROM messages.archive_partitions()").fetchall()


def age(conn: Connection, days: int, *queues: str, result: str = "success") -> None:
    """Put an archived message of each queue in a partition of its own day, so many days ago."""
    without_beginning(conn)
    conn.execute(
        f"DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - {days}; BEGIN"
        " EXECUTE format('CREATE TABLE IF NOT EXISTS messages.message_archive_%s PARTITION OF messages.archive_rows"
        " FOR VALUES FROM (%L) TO (%L)', to_char(day, 'YYYYMMDD'), day || ' 00:00 UTC', (day + 1) || ' 00:00 UTC');"
        " EXECUTE format('ALTER TABLE messages.message_archive_%s OWNER TO messages_owner', to_char(day, 'YYYYMMDD'));"
        " END $$"
    )
    for queue_name in queues:
        put(conn, days, queue_name, result)


def put(conn: Connection, days: int, queue_name: str, result: str = "success") -> None:
    conn.execute(
        "INSERT INTO messages.message_archive (created_at, archived_at, queue_name, result, message)"
        " VALUES (now(), date_trunc('day', now(), 'UTC') - %s * interval '1 day' + interval '1 hour', %s, %s, '1')",
        [days, queue_name, result],
    )


def kept(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute("SELECT queue_name FROM messages.message_archive ORDER BY 1")]


def test_partitions_of_three_months_are_made_ahead(conn: Connection) -> None:
    names = [name for name, _, _ in partitions(conn)]
    assert len(names) == 4
    assert run(conn, verbs.maintain())["partitions_made"] == 0


def test_partitions_by_day_begin_when_the_months_that_have_messages_end(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    run(conn, verbs.consume("orders"))
    run(conn, verbs.partition_archive("day"))
    month, *days = partitions(conn)
    assert month[2] - month[1] > timedelta(days=27)
    assert all(end - first == timedelta(days=1) for _, first, end in days)
    assert days, "the period after the month has its partition, however far away"
    run(conn, verbs.partition_archive("month"))
    assert len(partitions(conn)) >= 4
    with pytest.raises(InvalidArgument, match="partition_by is 'year'"):
        run(conn, verbs.partition_archive("year"))


@pytest.mark.parametrize("sizes", [["day", "month", "day"], ["month", "day"]])
@pytest.mark.parametrize("made_by", ["day", "month"])
def test_whatever_the_sizes_were_no_period_is_left_out(conn: Connection, sizes: list[str], made_by: str) -> None:
    conn.execute("UPDATE messages.archive_policy SET partition_by = %s", [made_by])
    for name, _, _ in partitions(conn):
        conn.execute(f"DROP TABLE messages.{name.removeprefix('messages.')}".encode())
    run(conn, verbs.maintain())
    for size in sizes:
        run(conn, verbs.partition_archive(size))
        made = partitions(conn)
        assert all(former[2] == later[1] for former, later in pairwise(made)), made
        found = conn.execute("SELECT severity, finding FROM messages.health_archive_partitions()").fetchone()
        assert found[0] == "ok", found


def test_retention_drops_a_partition_of_which_nothing_has_to_be_kept(conn: Connection, queue: Queue) -> None:
    conn.execute("TRUNCATE messages.message_archive")
    for name, days in (("orders", 10), ("returns", 40)):
        run(conn, verbs.create_queue(name, retention=timedelta(days=days)))
    age(conn, 60, "orders", "returns")
    age(conn, 50, "orders", "returns")
    before = len(partitions(conn))
    done = run(conn, verbs.maintain())
    assert (done["partitions_dropped"], done["archive_deleted"]) == (2, 0)
    assert len(partitions(conn)) == before - 2
    assert kept(conn) == []


def test_retention_deletes_by_queue_where_another_queue_keeps_longer(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    run(conn, verbs.create_queue("returns"))
    age(conn, 80, "orders", "returns", "gone")
    age(conn, 75, "orders")
    age(conn, 65, "orders")
    done = run(conn, verbs.maintain())
    assert (done["partitions_dropped"], done["archive_deleted"]) == (1, 1)
    assert kept(conn) == ["gone", "orders", "returns"]


def test_the_retention_of_a_queue_outlives_it(conn: Connection) -> None:
    """Its archive was promised to be gone by then, and would keep the partitions of all others."""
    for name, days in (("orders", 30), ("returns", 70), ("forever", None), ("again", 30)):
        run(conn, verbs.create_queue(name, **({} if days is None else {"retention": timedelta(days=days)})))
        run(conn, verbs.drop_queue(name))
    run(conn, verbs.create_queue("again"))
    age(conn, 110, "orders")
    age(conn, 60, "orders", "returns", "forever", "again")
    done = run(conn, verbs.maintain())
    assert (done["partitions_dropped"], done["archive_deleted"]) == (1, 1)
    assert kept(conn) == ["again", "forever", "returns"]
    # The last promise counts, and nothing is remembered once there is nothing left to keep it for.
    run(conn, verbs.drop_queue("again"))
    conn.execute("UPDATE messages.dropped_queue SET dropped_at = dropped_at - interval '40 days'")
    conn.execute("SELECT messages.apply_retention()")
    assert conn.execute("SELECT queue_name FROM messages.dropped_queue").fetchall() == [("returns",)]


def test_retention_waits_for_a_decision_about_a_dead_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    age(conn, 80, "orders", result="failed")
    assert run(conn, verbs.maintain())["partitions_dropped"] == 0
    assert kept(conn) == ["orders"]
    (dead,) = run(conn, verbs.lease_dead("orders"))
    run(conn, verbs.dismiss(dead.lock_token, [dead.id], "too old"))
    assert conn.execute("SELECT partitions_dropped FROM messages.apply_retention()").fetchone() == (1,)


def test_what_is_older_than_the_oldest_partition_is_refused_after_retention(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    age(conn, 80, "orders")
    run(conn, verbs.maintain())
    with pytest.raises(psycopg.errors.CheckViolation, match="archived_before_the_archive_begins"):
        conn.execute(
            "INSERT INTO messages.message_archive (created_at, archived_at, result, message)"
            " VALUES (now(), now() - interval '80 days', 'success', '1')"
        )


def test_retention_does_not_wait_for_somebody_who_reads_the_partition(connect: Connect, queue: Queue) -> None:
    conn, reader = connect(), connect(autocommit=False)
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    age(conn, 80, "orders")
    reader.execute("SELECT count(*) FROM messages.message_archive")
    assert run(conn, verbs.maintain())["partitions_dropped"] == 0
    reader.rollback()
    assert conn.execute("SELECT partitions_dropped FROM messages.apply_retention()").fetchone() == (1,)


def test_retention_keeps_what_was_archived_while_it_waited_for_the_partition(connect: Connect, queue: Queue) -> None:
    conn, archiver, cleaner = connect(), connect(autocommit=False), connect()
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    age(conn, 80, "orders")
    conn.execute("ALTER FUNCTION messages.apply_retention SET lock_timeout = '1min'")  # instead of a fifth of a second
    put(archiver, 80, "returns", "failed")
    with ThreadPoolExecutor(1) as pool:
        retention = pool.submit(cleaner.execute, "SELECT * FROM messages.apply_retention()")
        until_waiting(conn)
        archiver.commit()
        assert retention.result(timeout=20).fetchone() == (0, 1)
    assert kept(conn) == ["returns"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_that_does_not_see_a_message_drops_no_partition_with_it(
    connect: Connect, queue: Queue, level: str
) -> None:
    conn, stale = connect(), connect()
    run(conn, verbs.create_queue("orders", retention=timedelta(days=70)))
    age(conn, 80, "orders")
    stale.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
    assert kept(stale) == ["orders"]
    put(conn, 80, "returns")
    put(conn, -40, "returns")
    assert stale.execute("SELECT partitions_dropped FROM messages.apply_retention()").fetchone() == (0,)
    with pytest.raises(InvalidArgument, match=f"isolation level of the transaction is {level}"):
        run(stale, verbs.partition_archive("day"))
    stale.execute("ROLLBACK")
    assert kept(conn) == ["orders", "returns", "returns"]


def test_the_default_partition_is_adopted_in_parts_where_another_lies_between(conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE messages.later PARTITION OF messages.archive_rows"
        " FOR VALUES FROM ('2041-03-01') TO ('2041-04-01')"
    )
    for month in (2, 3, 5):
        conn.execute(
            "INSERT INTO messages.message_archive (created_at, archived_at, result, message)"
            " VALUES (now(), make_date(2041, %s, 10), 'success', to_jsonb(%s))",
            [month, month],
        )
    adopt = "SELECT messages.adopt_archive_default()"
    adopted = [conn.execute(adopt).fetchone() for _ in range(3)]
    assert adopted == [("message_archive_20410201_to_20410301",), ("message_archive_20410501_to_20410601",), (None,)]
    rows = conn.execute("SELECT message, tableoid::regclass::text FROM messages.message_archive ORDER BY archived_at")
    assert rows.fetchall() == [
        (2, f"messages.{adopted[0][0]}"),
        (3, "messages.later"),
        (5, f"messages.{adopted[1][0]}"),
    ]
