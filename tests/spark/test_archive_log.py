"""The archive as a log: each archived message once per query, whoever commits when and whatever dies."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from airflow_provider_pgqueue.core import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.errors import BeforeArchive, QueueNotFound
from airflow_provider_pgqueue.export.connection import Database, Session
from airflow_provider_pgqueue.spark.source.archive_log import ArchiveLog
from airflow_provider_pgqueue.spark.source.log_end import LogPace, LogPlan, LogWatch, Stretch
from airflow_provider_pgqueue.spark.source.tables import ARCHIVE
from tests.archive import make_partition
from tests.core.roles.test_roles import logins
from tests.waiting import until, until_nobody_else_writes

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Log = Callable[..., ArchiveLog]
Archive = Callable[..., list[int]]
Json = dict[str, Any]
RESTLESS = LogPace(longest_rest=0)


class PatientLog(ArchiveLog):
    """A log that nobody holds back but the sessions of the test."""

    conn: Connection

    def latestOffset(self, start: Json, limit: Any) -> Json:
        until_nobody_else_writes(self.conn)
        return super().latestOffset(start, limit)


@pytest.fixture
def log(dsn: str, conn: Connection) -> Iterator[Log]:
    """Follow the log without Spark around it, and without a rest: `log(maxMessagesPerTrigger="10")`."""
    opened: list[ArchiveLog] = []

    def follow(columns: tuple[str, ...] = ("id",), pace: LogPace = RESTLESS, **options: str) -> ArchiveLog:
        log = PatientLog(Database(dsn), options, ARCHIVE.spark_schema(columns), pace)
        log.conn = conn
        opened.append(log)
        return log

    yield follow
    for one in opened:
        one.stop()


@pytest.fixture
def archive(conn: Connection, queue: Callable[..., str]) -> Archive:
    """Publish messages and archive them in one transaction: `archive(5)`, or in one that stays open."""
    queue("orders", notify="off")

    def archive_some(messages: int = 1, on: Connection = conn) -> list[int]:
        bodies = f"[{','.join(map(str, range(messages)))}]"
        conn.execute("SELECT messages.publish_batch('orders', %s)", [bodies])
        return sorted(id_ for (id_,) in on.execute("SELECT id FROM messages.consume('orders', %s)", [messages]))

    return archive_some


def batches(log: ArchiveLog, start: Json | None = None) -> Iterator[tuple[Json, list[int]]]:
    """Do what Spark does until there is nothing new: the end of each batch and the ids in it."""
    here = start or log.initialOffset()
    while (end := log.latestOffset(here, log.getDefaultReadLimit())) != here:
        yield end, ids(log, here, end)
        log.commit(end)
        here = end


def ids(log: ArchiveLog, start: Json, end: Json) -> list[int]:
    parts = log.partitions(start, end)
    return sorted(id_ for part in parts for batch in log.read(part) for id_ in batch.column("id").to_pylist())


def given(log: ArchiveLog, start: Json | None = None) -> list[int]:
    return [id_ for _, some in batches(log, start) for id_ in some]


def end_of(log: ArchiveLog, start: Json | None = None) -> Json:
    end = start or log.initialOffset()
    for end, _ in batches(log, start):  # noqa: B007 the last one
        pass
    return end


def test_nothing_is_given_that_is_behind_an_open_transaction_and_all_of_it_once_afterwards(
    log: Log, archive: Archive, connect: Connect
) -> None:
    reader, slow = log(), connect(autocommit=False)
    early = archive(1)
    late = archive(2, on=slow)
    after = archive(3)
    end = end_of(reader)
    assert given(reader) == early
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    slow.commit()
    assert given(reader, end) == late + after
    assert given(log()) == early + late + after


def test_what_was_rolled_back_is_never_given(log: Log, archive: Archive, connect: Connect) -> None:
    aborted = connect(autocommit=False)
    archive(2, on=aborted)
    aborted.rollback()
    reader = log()
    assert given(reader) == []


def test_the_batches_of_a_queue_are_counted_in_its_own_messages(
    log: Log, archive: Archive, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("bills", notify="off")
    wanted = []
    for number in range(40):
        archive(10)
        if number % 4 == 0:
            conn.execute("SELECT messages.publish('bills', '1')")
            wanted += [id_ for (id_,) in conn.execute("SELECT id FROM messages.consume('bills', 1)")]
    archive(10)
    reader = log(queue="bills", maxMessagesPerTrigger="5")
    found = list(batches(reader))
    assert [some for _, some in found] == [wanted[:5], wanted[5:]]
    end = found[-1][0]
    assert given(reader, end) == []
    # Nothing of its own is no batch, however much others archive.
    archive(50)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_an_idle_stream_asks_for_nothing_twice_and_sees_what_comes(
    log: Log, archive: Archive, conn: Connection
) -> None:
    reader = log()
    end = end_of(reader)
    for _ in range(3):
        conn.execute("SELECT messages.publish('orders', '1')")
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    conn.execute("SELECT messages.consume('orders', 10)")
    assert len(given(reader, end)) == 3


def test_a_batch_has_no_more_messages_than_it_may_unless_one_transaction_has(log: Log, archive: Archive) -> None:
    for messages in (4, 4, 4, 25, 1, 1):
        archive(messages)
    sizes = [len(some) for _, some in batches(log(maxMessagesPerTrigger="10"))]
    assert sizes == [8, 4, 25, 2]


def test_the_backlog_is_planned_once_and_not_for_each_batch(dsn: str, conn: Connection, archive: Archive) -> None:
    asked = Counter[str]()

    class Counting(Session):
        def ask(self, statement: Any) -> Any:
            asked[statement.function] += 1
            return super().ask(statement)

    for _ in range(20):
        archive(1)
    until_nobody_else_writes(conn)
    with closing(Counting(Database(dsn), "pgqueue archive log")) as session:
        plan, end, here, sizes = LogPlan(session), LogWatch(session).end(), 0, []
        while (step := plan.next_step(here, end, 2)) is not None:
            sizes.append(step.messages)
            here = step.end
            plan.forget(here)
        assert sizes == [2] * 10
        assert asked["split_archive_log"] == 1


def test_a_plan_that_is_cut_short_goes_on_where_it_ended(conn: Connection, archive: Archive) -> None:
    for _ in range(7):
        archive(1)
    steps = "SELECT xid, messages FROM messages.split_archive_log(%s, %s, 2, max_steps => 2)"
    until_nobody_else_writes(conn)
    horizon = scalar(conn, "SELECT horizon FROM messages.archive_log_end()")
    first = conn.execute(steps, [0, horizon]).fetchall()
    second = conn.execute(steps, [first[-1][0], horizon]).fetchall()
    assert [messages for _, messages in first + second] == [2, 2, 2, 1]
    assert second[-1][0] == horizon


def test_a_batch_is_cut_into_parts_of_about_the_same_size(log: Log, archive: Archive) -> None:
    for _ in range(40):
        archive(1)
    reader = log(numPartitions="4")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    sizes = [sum(batch.num_rows for batch in reader.read(part)) for part in parts]
    assert sizes == [10, 10, 10, 10]


def test_a_part_is_read_by_few_short_statements(log: Log, archive: Archive) -> None:
    for _ in range(40):
        archive(1)
    reader = log(pace=replace(RESTLESS, stretch=8), numPartitions="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = [part.value[0] for part in reader.partitions(start, end)]
    assert [[stretch.messages for stretch in stretches] for stretches in parts] == [[5] * 4] * 2
    assert len(ids(reader, start, end)) == 40


def test_a_new_reader_gives_a_batch_again_with_the_same_messages(log: Log, archive: Archive) -> None:
    for _ in range(6):
        archive(2)
    reader = log(maxMessagesPerTrigger="4")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    archive(3)
    assert ids(log(numPartitions="2"), start, end) == ids(reader, start, end)
    assert len(ids(reader, start, end)) == 4


def test_rows_of_a_restored_dump_are_made_the_beginning_of_the_log(
    log: Log, archive: Archive, conn: Connection
) -> None:
    old = archive(25)
    conn.execute("UPDATE messages.message_archive SET xid = xid + 1000000")  # the numbers of another cluster
    documented = Path("docs/decisions/0008-the-archive-as-a-log.md").read_text()
    for statement in documented.partition("```sql")[2].partition("```")[0].split(";"):
        conn.execute(statement.encode())
    new = archive(5)
    reader = log(maxMessagesPerTrigger="10")
    found = list(batches(reader))
    assert [len(some) for _, some in found] == [10, 10, 10]
    assert [id_ for _, some in found for id_ in some] == old + new
    assert given(log(), found[0][0]) == (old + new)[10:]


def test_a_stream_starts_at_the_end_or_at_a_moment_if_asked(log: Log, archive: Archive, conn: Connection) -> None:
    archive(2)
    moment = scalar(conn, "SELECT clock_timestamp()::text")
    second, latest = archive(3), log(startingOffsets="latest")
    end = latest.initialOffset()
    third = archive(1)
    assert given(latest, end) == third
    assert given(log(startingOffsets=moment)) == second + third


def test_the_first_batch_is_the_same_after_a_crash_though_spark_forgot_where_it_began(
    log: Log, archive: Archive
) -> None:
    archive(1)
    before, after = log(startingOffsets="latest"), log(startingOffsets="latest")
    start = before.initialOffset()
    mine = archive(2)
    assert before.initialOffset() == start
    end = before.latestOffset(start, ReadAllAvailable())
    archive(3)
    assert ids(after, after.initialOffset(), end) == mine


def test_a_transaction_that_was_open_at_the_moment_of_the_start_is_not_missed(
    log: Log, archive: Archive, conn: Connection, connect: Connect
) -> None:
    slow = connect(autocommit=False)
    slow.execute("SELECT pg_current_xact_id()")
    moment = scalar(conn, "SELECT clock_timestamp()::text")
    archive(1)
    reader = log(startingOffsets=moment)
    start = reader.initialOffset()
    late = archive(1, on=slow)
    slow.commit()
    assert set(late) < set(given(reader, start))


@pytest.mark.parametrize("moment", ["yesterday", "2026-01-31T00:00:00"])
def test_a_moment_without_a_zone_is_refused(log: Log, moment: str) -> None:
    with pytest.raises(InvalidArgument, match="Give earliest, latest, or a time with its time zone"):
        log(startingOffsets=moment).initialOffset()


def test_only_the_queues_and_results_that_are_asked_for_are_given(
    log: Log, archive: Archive, queue: Callable[..., str]
) -> None:
    orders = archive(2)
    queue("mail")
    assert given(log(queue="orders, mail", result="success")) == orders
    assert given(log(queue="mail")) == []
    assert given(log(result="failed")) == []


def test_a_stream_of_a_queue_that_does_not_exist_is_refused_when_it_begins_and_not_later(
    log: Log, archive: Archive, conn: Connection
) -> None:
    orders = archive(1)
    with pytest.raises(QueueNotFound, match=r"queue 'order' does not exist\. Check its spelling"):
        log(queue="order").initialOffset()
    start = log(queue="orders").initialOffset()
    conn.execute("SELECT messages.drop_queue('orders')")
    assert given(log(queue="orders"), start) == orders


def test_the_checkpoint_of_another_database_is_refused(log: Log, archive: Archive) -> None:
    mine = archive(1)
    start = log().initialOffset() | {"system": "1234/5"}
    with pytest.raises(InvalidArgument, match="Start the query with a new checkpoint"):
        log().latestOffset(start, ReadAllAvailable())
    with pytest.raises(InvalidArgument, match="of the database 1234/5"):
        log().partitions(start, start | {"xid": 7})
    assert given(log(formerSystem="1234/5"), start) == mine


def test_a_checkpoint_that_is_ahead_of_the_database_is_refused(log: Log) -> None:
    start = log(startingOffsets="latest").initialOffset()
    with pytest.raises(InvalidArgument, match="restored from a backup"):
        log().latestOffset(start | {"xid": start["xid"] + 1000}, ReadAllAvailable())


def test_a_server_that_is_behind_the_batch_gives_no_rows_rather_than_some(log: Log) -> None:
    reader = log(startingOffsets="latest")
    start = reader.initialOffset()
    part = InputPartition(([Stretch(1, start["xid"] + 1000)], 0))
    with pytest.raises(InvalidArgument, match="replica"):
        list(reader.read(part))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"queue": "Orders"}, "'Orders', which no queue can have"),
        ({"queue": "orders,"}, "with an empty name"),
        ({"result": "sucess"}, "names 'sucess'. Give some of success, failed"),
        ({"maxMessagePerTrigger": "10"}, "no option 'maxMessagePerTrigger'.*Did you mean maxMessagesPerTrigger?"),
        ({"starting_offsets": "latest"}, "Did you mean startingOffsets?"),
        ({"maxOffsetsPerTrigger": "10"}, "no option 'maxOffsetsPerTrigger'.* Use maxMessagesPerTrigger"),
        ({"startingTimestamp": "1"}, "A stream of the archive starts at startingOffsets"),
        ({"since": "2026-11-01T00:00:00Z"}, "no option 'since'. A stream of the archive takes table, columns"),
    ],
    ids=str,
)
def test_an_option_that_was_mistyped_is_named(log: Log, options: dict[str, str], why: str) -> None:
    with pytest.raises(PgQueueError, match=why):
        log(**options)


def archive_days_ago(conn: Connection, days: int, *, length: int = 1, messages: int = 1) -> list[int]:
    """Archive messages in one transaction, in a partition that is as old, and make it if there is none."""
    name = f"messages.message_archive_{datetime.now(UTC) - timedelta(days=days):%Y%m%d}"
    if scalar(conn, f"SELECT to_regclass('{name}')") is None:
        make_partition(conn, days, days=length)
    query = (
        "INSERT INTO messages.message_archive (created_at, archived_at, queue_name, result, message)"
        " SELECT p.first_at, p.first_at, 'orders', 'success', '1'"
        " FROM messages.archive_partitions() p, generate_series(1, %s) WHERE p.partition = %s RETURNING id"
    )
    return [id_ for (id_,) in conn.execute(query.encode(), [messages, name])]


def retain(conn: Connection, days: int, *, at_most: int = 50_000) -> tuple[int, int]:
    """Apply the retention of so many days; the partitions and the messages that it removed."""
    conn.execute("UPDATE messages.queue SET retention = make_interval(days => %s)", [days])
    query = "SELECT partitions_dropped, messages_deleted FROM messages.apply_retention(%s)"
    row = conn.execute(query, [at_most]).fetchone()
    assert row is not None
    return row


def drop(conn: Connection, place: int) -> None:
    """Drop a partition as an export does, for example the oldest, place 0."""
    conn.execute(
        "SELECT messages.drop_and_record_partition("
        " (SELECT p.partition::regclass FROM messages.archive_partitions() p ORDER BY first_at OFFSET %s LIMIT 1))",
        [place],
    )
    conn.execute("SELECT messages.set_archive_begin()")


def test_a_query_that_had_read_all_that_retention_removed_goes_on_after_any_time(
    log: Log, archive: Archive, conn: Connection
) -> None:
    mine = archive_days_ago(conn, 45) + archive_days_ago(conn, 44)
    reader = log()
    assert given(reader) == mine
    end = end_of(log())
    assert retain(conn, 40)[0] == 2
    assert given(log(), end) == []
    new = archive(2)
    assert given(log(), end) == new
    assert given(log()) == new


def test_a_message_that_retention_deleted_unread_is_an_error_before_its_partition_goes_unless_of_another_queue(
    log: Log, archive: Archive, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("mail")
    archive_days_ago(conn, 60, length=10)
    end = end_of(log())
    archive_days_ago(conn, 60)
    assert retain(conn, 55) == (0, 2)
    for options in ({}, {"queue": "mail,orders"}):
        with pytest.raises(BeforeArchive):
            log(**options).latestOffset(end, ReadAllAvailable())
    assert given(log(queue="mail"), end) == []
    assert given(log(queue="mail")) == []


def test_a_partition_that_goes_while_an_older_one_is_kept_is_an_error_for_who_had_not_read_it(
    log: Log, archive: Archive, conn: Connection
) -> None:
    kept = archive_days_ago(conn, 45)
    start = log().initialOffset()
    first, fresh = end_of(log()), log().initialOffset()
    archive_days_ago(conn, 44)
    both = end_of(log())
    last = archive_days_ago(conn, 43)
    reader = log()
    batch = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, batch)
    drop(conn, 1)
    for unread in (start, first, fresh):
        with pytest.raises(BeforeArchive, match="set failOnDataLoss to false"):
            log().latestOffset(unread, ReadAllAvailable())
        with pytest.raises(BeforeArchive):
            log().partitions(unread, batch | {"since": unread["xid"]})
    with pytest.raises(BeforeArchive):
        [list(reader.read(part)) for part in parts]
    patient = log(failOnDataLoss="false")
    assert sum(batch.num_rows for part in parts for batch in patient.read(part)) == 2
    assert given(log(), both) == last
    assert given(log()) == kept + last
    assert given(log(failOnDataLoss="false"), start) == kept + last


def test_a_partition_that_goes_is_lost_to_queries_of_the_queues_that_it_had(
    log: Log, archive: Archive, conn: Connection
) -> None:
    make_partition(conn, 45, rows=4)
    start = log().initialOffset()
    drop(conn, 0)
    for queue_name in ("orders", "returns"):
        with pytest.raises(BeforeArchive):
            log(queue=queue_name).latestOffset(start, ReadAllAvailable())
    assert given(log(queue="mail"), start) == []
    assert conn.execute("SELECT number FROM messages.archive_removal ORDER BY 1").fetchall() == [(1,), (2,)]


def test_a_query_that_begins_after_a_loss_reads_what_is_older_and_notices_a_second_loss(
    log: Log, archive: Archive, conn: Connection
) -> None:
    kept = archive_days_ago(conn, 45) + archive_days_ago(conn, 44)
    archive_days_ago(conn, 43)
    drop(conn, 2)
    last = archive(1)
    reader = log(maxMessagesPerTrigger="1")
    start = reader.initialOffset()
    found = batches(reader, start)
    end, ids_ = next(found)
    drop(conn, 0)  # it had read this one
    assert ids_ + [id_ for _, some in found for id_ in some] == kept + last
    drop(conn, 0)
    for unread in (start, end):
        with pytest.raises(BeforeArchive):
            log().latestOffset(unread, ReadAllAvailable())
    assert given(log()) == last


def test_a_batch_of_which_nothing_is_left_is_an_error(log: Log, archive: Archive, conn: Connection) -> None:
    archive_days_ago(conn, 45)
    reader = log()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    drop(conn, 0)
    for one in (reader, log()):  # the second as after a crash: Spark asks for the first start again
        with pytest.raises(BeforeArchive):
            one.partitions(one.initialOffset(), end)


def test_messages_that_were_held_back_when_the_query_paused_and_are_gone_now_are_an_error(
    log: Log, archive: Archive, conn: Connection, connect: Connect
) -> None:
    early = archive(1)
    slow = connect(autocommit=False)
    slow.execute("SELECT pg_current_xact_id()")
    archive_days_ago(conn, 45)
    reader = log()
    assert given(reader) == early
    end = end_of(log())
    slow.commit()
    assert retain(conn, 40)[0] == 1
    with pytest.raises(BeforeArchive):
        log().latestOffset(end, ReadAllAvailable())


def test_a_start_before_something_that_was_removed_is_refused(
    log: Log, archive: Archive, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("mail")
    old = archive_days_ago(conn, 45)
    archive_days_ago(conn, 43)
    new = archive_days_ago(conn, 41)
    drop(conn, 1)
    before, after = ((datetime.now(UTC) - timedelta(days=days)).isoformat() for days in (44, 42))
    with pytest.raises(BeforeArchive, match=r"has been removed, and startingOffsets is .* Start later, or at earliest"):
        log(startingOffsets=before).initialOffset()
    assert given(log(startingOffsets=before, failOnDataLoss="false")) == new
    assert given(log(startingOffsets=before, queue="mail")) == []
    assert given(log(startingOffsets=after)) == new
    assert given(log()) == old + new


def test_a_checkpoint_without_the_number_of_removals_can_be_continued(
    log: Log, archive: Archive, conn: Connection
) -> None:
    archive_days_ago(conn, 45)
    end = end_of(log())
    assert end.pop("removals") == 0
    drop(conn, 0)
    new = archive(1)
    assert given(log(), end | {"at": "2026-01-31T00:00:00+00:00"}) == new


def test_a_message_that_retention_deletes_after_it_was_read_is_no_error_for_the_rest_of_its_part(
    log: Log, archive: Archive, conn: Connection
) -> None:
    for _ in range(2):
        archive_days_ago(conn, 60, length=10)
    reader = log(pace=replace(RESTLESS, stretch=1), numPartitions="1")
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    rest = reader.read(part)
    assert [next(rest).num_rows for _ in range(2)] == [1, 1]
    assert retain(conn, 55, at_most=1) == (0, 1)
    assert list(rest) == []
    with pytest.raises(BeforeArchive):
        list(reader.read(part))


def test_an_idle_stream_looks_less_often_where_a_look_takes_long(log: Log, archive: Archive) -> None:
    reader = log(pace=LogPace(longest_rest=3.0, worth=100_000))
    start = end_of(reader)
    began = time.monotonic()
    mine = archive(1)
    end = until(lambda: found if (found := reader.latestOffset(start, ReadAllAvailable())) != start else None)
    assert time.monotonic() - began > 1.0
    assert ids(reader, start, end) == mine


def test_a_transaction_that_holds_the_log_back_is_named(
    log: Log,
    archive: Archive,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = connect(autocommit=False, application_name="nightly load")
    archive(1, on=slow)
    reader = log(pace=replace(RESTLESS, held_for=0.0))
    with caplog.at_level(logging.WARNING):
        end_of(reader)
    assert f"session {slow.info.backend_pid} (application nightly load)" in caplog.text
    caplog.clear()
    slow.commit()
    with caplog.at_level(logging.WARNING):
        end_of(reader)
    assert caplog.text == ""


def test_the_role_of_a_reader_is_enough_also_to_name_who_holds_the_log_back(
    dsn: str, archive: Archive, connect: Connect
) -> None:
    mine, slow = archive(3), connect(autocommit=False)
    with logins(dsn) as login:
        login("robot", "messages_reader")
        reader = ArchiveLog(Database(make_conninfo(dsn, user="robot")), {}, ARCHIVE.spark_schema(("id", "message")))
        try:
            assert given(reader) == mine
            archive(1, on=slow)
            assert reader._watch.end(now=True).holder_pid == slow.info.backend_pid
        finally:
            reader.stop()


def test_a_broken_connection_of_the_driver_is_opened_again(log: Log, archive: Archive, conn: Connection) -> None:
    reader = log()
    end = end_of(reader)
    conn.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'pgqueue archive log'"
    )
    mine = archive(2)
    assert given(reader, end) == mine


def test_a_stretch_of_a_long_log_is_found_by_its_index(log: Log, conn: Connection) -> None:
    conn.execute(
        "INSERT INTO messages.message_archive (id, created_at, result, message, xid)"
        " SELECT n, now(), 'success', '{}', n FROM generate_series(1, 20000) n"
    )
    conn.execute("VACUUM ANALYZE messages.message_archive")
    query = log()._query(18000, 18100)
    plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN {query}".encode()))
    assert "_xid_idx" in plan


def scalar(conn: Connection, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def seen(batch_ids: dict[int, list[int]]) -> Counter[int]:
    return Counter(id_ for some in batch_ids.values() for id_ in some)


def collect(into: dict[int, list[int]]) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, batch_id: int) -> None:
        into[batch_id] = [row.id for row in batch.select("id").collect()]

    return keep


def test_spark_gives_all_columns_and_ends_with_what_was_there_at_the_start(
    spark: SparkSession, archive: Archive, conn: Connection, tmp_path: Path
) -> None:
    mine = archive(4) + archive(1)
    until_nobody_else_writes(conn)
    stream = (
        spark.readStream.format("pgqueue")
        .options(table="archive", columns="*", maxMessagesPerTrigger="4", numPartitions="2")
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.id for row in rows) == mine
    assert {row.message for row in rows} == {"0", "1", "2", "3"}
    (first,) = conn.execute("SELECT xid, archived_at FROM messages.message_archive WHERE id = %s", [mine[0]]).fetchall()
    assert {(row.xid, row.archived_at.replace(tzinfo=UTC)) for row in rows if row.id == mine[0]} == {first}


def test_each_message_is_given_once_while_many_archive_at_random(
    spark: SparkSession, archive: Archive, conn: Connection, connect: Connect, tmp_path: Path
) -> None:
    conn.execute("SELECT messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, 400) n))")

    def consume(session: Connection, chance: random.Random) -> None:
        while True:
            taken = session.execute("SELECT FROM messages.consume('orders', %s)", [chance.randint(1, 7)]).rowcount
            session.execute("SELECT pg_sleep(%s)", [chance.random() / 20])
            session.rollback() if taken and chance.random() < 0.2 else session.commit()
            if not taken:
                return

    found: dict[int, list[int]] = {}
    stream = (
        spark.readStream.format("pgqueue")
        .options(table="archive", columns="id", maxMessagesPerTrigger="120", numPartitions="2")
        .load()
    )
    query = (
        stream.writeStream.foreachBatch(collect(found))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    workers = [
        threading.Thread(target=consume, args=(connect(autocommit=False), random.Random(seed))) for seed in range(6)
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        while conn.execute("SELECT FROM messages.message").rowcount:  # what the last rollbacks gave back
            conn.execute("SELECT messages.maintain()")
            conn.execute("SELECT messages.consume('orders', 100)")
        until_nobody_else_writes(conn)

        def has_all() -> bool:
            query.processAllAvailable()  # it may have looked just before the end
            return sum(map(len, found.values())) >= 400

        until(has_all)
    finally:
        query.stop()
    archived = {id_ for (id_,) in conn.execute("SELECT id FROM messages.message_archive")}
    assert len(archived) == 400
    assert seen(found) == Counter(archived)
    assert len(found) > 1
