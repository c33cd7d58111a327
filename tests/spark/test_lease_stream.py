"""A queue as a stream: leased under names, archived by the sink, whatever is run twice and whatever dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from airflow_provider_pgqueue.core import InvalidArgument, PgQueueError, QueueNotFound
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.source.leases import ArchiveSink, LeaseStream
from airflow_provider_pgqueue.spark.source.tables import LEASED, table_of
from tests.core.roles.test_roles import logins
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Publish = Callable[[int], list[int]]
Stream = Callable[..., LeaseStream]


@pytest.fixture
def publish(conn: Connection, queue: Callable[..., str]) -> Publish:
    queue("orders", notify="off")

    def publish_some(messages: int) -> list[int]:
        bodies = f"[{','.join(map(str, range(messages)))}]"
        return sorted(id_ for (id_,) in conn.execute("SELECT messages.publish_batch('orders', %s)", [bodies]))

    return publish_some


@pytest.fixture
def stream(dsn: str) -> Iterator[Stream]:
    opened: list[LeaseStream] = []

    def open_stream(**options: str) -> LeaseStream:
        given = {"queue": "orders", "streamName": "packer"} | options
        opened.append(LeaseStream(Database(dsn), given, LEASED.spark_schema()))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.stop()


@pytest.fixture
def sink(dsn: str) -> ArchiveSink:
    return ArchiveSink(Database(dsn), LEASED.spark_schema())


def rows(stream: LeaseStream, name: str) -> list[dict[str, Any]]:
    return [row for batch in stream.read(InputPartition(name)) for row in batch.to_pylist()]


def ids(stream: LeaseStream, name: str) -> list[int]:
    return sorted(row["id"] for row in rows(stream, name))


def write(sink: ArchiveSink, outcomes: list[dict[str, Any]]) -> dict[str, int]:
    return dict(sink.write(iter([pa.RecordBatch.from_pylist(outcomes)])).counts)


def archived(conn: Connection) -> dict[int, dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM messages.message_archive").fetchall()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def waiting(conn: Connection) -> list[tuple[int, int]]:
    return conn.execute("SELECT id, attempts FROM messages.message ORDER BY id").fetchall()


def test_a_named_lease_gives_the_same_messages_again_and_never_others(stream: Stream, publish: Publish) -> None:
    publish(5)
    packer = stream(maxMessagesPerTrigger="4")
    first = ids(packer, "packer/1/0")
    assert len(first) == 2
    assert ids(stream(maxMessagesPerTrigger="100"), "packer/1/0") == first
    assert not set(ids(packer, "packer/1/1")) & set(first)


def test_a_batch_has_no_more_messages_than_it_may(stream: Stream, publish: Publish) -> None:
    publish(20)
    for batch, most in enumerate((1, 3, 7)):
        packer = stream(maxMessagesPerTrigger=str(most), numPartitions="4")
        parts = packer.partitions({"batch": batch}, {"batch": batch + 1})
        assert sum(len(ids(packer, part.value)) for part in parts) == most


def test_a_named_lease_that_found_nothing_stays_empty(stream: Stream, publish: Publish) -> None:
    packer = stream()
    assert ids(packer, "packer/1/0") == []
    publish(3)
    assert ids(packer, "packer/1/0") == []
    assert len(ids(packer, "packer/2/0")) == 3


def test_two_attempts_at_once_get_the_same_messages(stream: Stream, publish: Publish) -> None:
    publish(100)
    packer = stream(maxMessagesPerTrigger="20")
    with ThreadPoolExecutor(8) as pool:
        for batch in range(5):
            attempts = list(pool.map(lambda _, batch=batch: tuple(ids(packer, f"packer/{batch}/0")), range(8)))
            assert len(attempts[0]) == 10
            assert len(set(attempts)) == 1


def test_asking_again_extends_the_lease_and_counts_no_attempt(
    stream: Stream, publish: Publish, conn: Connection
) -> None:
    publish(1)
    (first,) = rows(stream(leaseSeconds="60"), "packer/1/0")
    (again,) = rows(stream(leaseSeconds="600"), "packer/1/0")
    assert again["lock_expires_at"] > first["lock_expires_at"]
    assert again["lock_token"] == first["lock_token"]
    assert waiting(conn) == [(first["id"], 1)]


def test_a_named_lease_gives_only_what_it_still_holds(
    stream: Stream, publish: Publish, conn: Connection, sink: ArchiveSink
) -> None:
    publish(6)
    packer = stream()
    expired, done, taken, *held = rows(packer, "packer/1/0")
    write(sink, [{"id": done["id"], "lock_token": done["lock_token"]}])
    expire = "UPDATE messages.message SET lock_expires_at = clock_timestamp() - interval '1 s' WHERE id = %s"
    conn.execute(expire, [taken["id"]])
    conn.execute("SELECT messages.upkeep()")
    other = conn.execute("SELECT id FROM messages.lease('orders', 10)").fetchall()
    assert other == [(taken["id"],)]
    conn.execute(expire, [expired["id"]])
    assert ids(packer, "packer/1/0") == sorted(row["id"] for row in held)
    assert write(sink, [{"id": taken["id"], "lock_token": taken["lock_token"]}]) == {"lost": 1}


def test_the_first_batch_has_the_same_names_after_a_crash_though_spark_forgot_where_it_began(
    stream: Stream, publish: Publish
) -> None:
    publish(1)
    before, after = stream(), stream()
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    assert before.initialOffset() == start
    names = [[part.value for part in one.partitions(one.initialOffset(), end)] for one in (before, after)]
    assert names[0] == names[1]
    assert len(names[0]) == 2


def test_a_straggler_of_a_batch_that_is_done_takes_nothing(stream: Stream, publish: Publish, conn: Connection) -> None:
    publish(2)
    packer = stream(maxMessagesPerTrigger="2")
    assert len(ids(packer, "packer/7/0")) == 1
    assert len(ids(packer, "packer/8/0")) == 1
    publish(1)
    packer.commit({"batch": 7})
    assert ids(packer, "packer/7/0") == []
    assert len(ids(packer, "packer/8/0")) == 1


def test_named_leases_are_forgotten_a_day_after_they_ended(stream: Stream, publish: Publish, conn: Connection) -> None:
    publish(1)
    ids(stream(), "packer/1/0")
    ids(stream(), "packer/2/0")
    conn.execute("UPDATE messages.named_lease SET expires_at = now() - interval '25 hours' WHERE lease_name ~ '/1/'")
    conn.execute("SELECT messages.delete_expired_records()")
    assert conn.execute("SELECT lease_name FROM messages.named_lease").fetchall() == [("packer/2/0",)]


def test_a_named_lease_of_another_queue_is_refused(stream: Stream, publish: Publish, queue: Callable[..., str]) -> None:
    queue("mail")
    ids(stream(), "packer/1/0")
    with pytest.raises(InvalidArgument, match="name of its own"):
        rows(stream(queue="mail"), "packer/1/0")


def test_a_limited_team_reaches_no_named_lease_of_another_team(
    dsn: str, stream: Stream, publish: Publish, queue: Callable[..., str], conn: Connection
) -> None:
    publish(2)
    with logins(dsn) as login:
        for team, queue_name in (("packers", "orders"), ("mailers", queue("mail"))):
            login(team, "messages_consumer", "messages_limited")
            conn.execute("SELECT messages.grant_queue(%s, %s, 'consume')", [queue_name, team])
        packer = LeaseStream(
            Database(make_conninfo(dsn, user="packers")),
            {"queue": "orders", "streamName": "packer"},
            LEASED.spark_schema(),
        )
        start = packer.initialOffset()
        end = packer.latestOffset(start, ReadAllAvailable())
        (first, _) = packer.partitions(start, end)
        assert len(list(packer.read(first))) == 1
        packer.commit(start)
        packer.stop()
        with psycopg.connect(dsn, user="mailers", autocommit=True) as mailers:
            for statement in (
                "SELECT messages.lease_named(%s, 'orders')",
                "SELECT messages.end_named_leases(%s, 'orders', 9)",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    mailers.execute(statement.encode(), [first.value])
            conn.execute("SELECT messages.publish('mail', '1')")
            # The same name is a name of its own for another login, and neither ends the leases of the other.
            (mail,) = mailers.execute(
                "SELECT queue_name FROM messages.lease_named(%s, 'mail')", [first.value]
            ).fetchall()
            assert mail == ("mail",)
            ended = mailers.execute("SELECT messages.end_named_leases('packer', 'mail', 9999999999999)").fetchone()
            assert ended == (1,)
    assert conn.execute("SELECT count(*) FROM messages.named_lease WHERE lock_token IS NOT NULL").fetchone() == (1,)


def test_an_unknown_queue_is_an_error_at_the_start(stream: Stream, publish: Publish) -> None:
    with pytest.raises(QueueNotFound):
        stream(queue="nothing").initialOffset()


def test_a_paused_queue_gives_nothing(stream: Stream, publish: Publish, conn: Connection) -> None:
    publish(1)
    conn.execute("SELECT messages.pause_queue('orders')")
    packer = stream()
    start = packer.initialOffset()
    assert packer.latestOffset(start, ReadAllAvailable()) == start
    assert rows(packer, "packer/1/0") == []


@pytest.mark.parametrize(
    "options",
    [
        {"streamName": ""},
        {"streamName": "a/b"},
        {"queue": ""},
        {"queue": "a,b"},
        {"queue": "Orders"},
        {"numPartitions": "0"},
        {"lease_seconds": "60"},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(stream: Stream, options: dict[str, str]) -> None:
    with pytest.raises(PgQueueError, match=f"{next(iter(options))}|queue"):
        stream(**options)


def test_a_stream_without_a_name_is_told_that_and_not_of_the_columns_of_the_table(dsn: str) -> None:
    options = {"table": "queue", "queue": "orders"}
    with pytest.raises(InvalidArgument, match=r"option streamName is ''\. Give the stream a name"):
        LeaseStream(Database(dsn), options, table_of(options).spark_schema())


def test_planning_leases_nothing_and_goes_on_only_while_messages_are_ready(
    stream: Stream, publish: Publish, conn: Connection
) -> None:
    packer = stream()
    start = packer.initialOffset()
    assert packer.latestOffset(start, ReadAllAvailable()) == start
    publish(1)
    end = until(lambda: found if (found := packer.latestOffset(start, ReadAllAvailable())) != start else None)
    assert len(packer.partitions(start, end)) == 2
    assert {attempts for _, attempts in waiting(conn)} == {0}


def test_each_message_ends_as_its_row_says(
    stream: Stream, publish: Publish, conn: Connection, sink: ArchiveSink
) -> None:
    publish(6)
    leased = rows(stream(numPartitions="1"), "packer/1/0")
    said: list[dict[str, Any]] = [
        {"result": None},
        {"result": "success", "output": '{"parcel": 1.10, "big": 123456789012345678901234567890}'},
        {"result": "rejected", "details": "no such order"},
        {"result": "failed", "details": 'it\'s "broken"'},
        {"result": "retry", "delay_seconds": 3600},
        {"result": "retry", "details": "busy"},
    ]
    empty = dict.fromkeys(("result", "output", "details", "delay_seconds"))
    outcomes = [
        empty | outcome | {"id": row["id"], "lock_token": row["lock_token"]}
        for row, outcome in zip(leased, said, strict=True)
    ]
    assert write(sink, outcomes) == {"success": 2, "rejected": 1, "failed": 1, "retried": 2}
    found = [archived(conn)[row["id"]] for row in leased[:4]]
    assert [(row["result"], row["details"]) for row in found] == [
        ("success", None),
        ("success", None),
        ("rejected", "no such order"),
        ("failed", 'it\'s "broken"'),
    ]
    parcel = "SELECT output #>> '{parcel}', output #>> '{big}' FROM messages.message_archive WHERE id = %s"
    assert conn.execute(parcel, [leased[1]["id"]]).fetchone() == ("1.10", "123456789012345678901234567890")
    later = "SELECT visible_at - clock_timestamp() > interval '30 minutes' FROM messages.message ORDER BY id"
    assert conn.execute(later).fetchall() == [(True,), (False,)]
    assert write(sink, outcomes) == {"lost": 6}


def test_outcomes_without_a_token_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="lock_token"):
        ArchiveSink(Database(""), LEASED.spark_schema(["id"]))


def test_details_that_postgresql_cannot_hold_are_kept_without_that(
    stream: Stream, publish: Publish, conn: Connection, sink: ArchiveSink
) -> None:
    publish(2)
    outcomes = [
        {"id": row["id"], "lock_token": row["lock_token"], "result": result, "details": "a\0b"}
        for row, result in zip(rows(stream(numPartitions="1"), "packer/1/0"), ("failed", "retry"), strict=True)
    ]
    assert write(sink, outcomes) == {"failed": 1, "retried": 1}
    assert [row["details"] for row in archived(conn).values()] == ["a\ufffdb"]


def test_a_message_that_a_part_has_twice_ends_as_its_first_row_says_and_counts_once(
    stream: Stream, publish: Publish, conn: Connection, sink: ArchiveSink
) -> None:
    publish(1)
    (row,) = rows(stream(numPartitions="1"), "packer/1/0")
    said = [{"id": row["id"], "lock_token": row["lock_token"], "result": result} for result in ("rejected", "success")]
    assert write(sink, said) == {"rejected": 1, "lost": 1}
    assert [row["result"] for row in archived(conn).values()] == ["rejected"]


def test_a_token_that_is_none_is_an_error(publish: Publish, sink: ArchiveSink, conn: Connection) -> None:
    mine = publish(2)
    with pytest.raises(InvalidArgument, match="a lock_token is not one of a lease") as raised:
        write(sink, [{"id": id_, "lock_token": "secret"} for id_ in mine])
    assert "secret" not in str(raised.value)
    assert archived(conn) == {}


def test_the_sink_says_how_many_were_lost_and_nothing_else(
    publish: Publish, stream: Stream, sink: ArchiveSink, caplog: pytest.LogCaptureFixture
) -> None:
    publish(2)
    some, none = sink.write(stream().read(InputPartition("packer/1/0"))), sink.write(iter([]))
    with caplog.at_level(logging.INFO):
        sink.commit([some, none, None], 7)
    assert caplog.messages == ["batch 7: 2 success"]


def lease_stream(spark: SparkSession, **options: str) -> DataFrame:
    reader = spark.readStream.format("pgqueue").option("table", "queue").option("queue", "orders")
    return reader.options(**({"streamName": "packer", "maxMessagesPerTrigger": "20"} | options)).load()


def archive_all(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("pgqueue").option("table", "archive")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def test_spark_archives_a_queue_and_ends_with_what_was_ready_at_the_start(
    spark: SparkSession, publish: Publish, conn: Connection, tmp_path: Path
) -> None:
    mine = publish(35)
    frame = lease_stream(spark).withColumn("body", F.col("message").cast("int"))
    result = F.when(F.col("body") % 5 == 0, "rejected").otherwise("success")
    outcomes = frame.select("id", "lock_token", result.alias("result"), F.to_json(F.struct("body")).alias("output"))
    archive_all(outcomes, tmp_path / "checkpoint")
    found = archived(conn)
    assert sorted(found) == mine
    assert {row["message"] for row in found.values() if row["result"] == "rejected"} == {0, 5, 10, 15, 20, 25, 30}
    assert all(row["output"] == {"body": row["message"]} and row["attempts"] == 1 for row in found.values())
    assert waiting(conn) == []
    more = publish(5)
    archive_all(outcomes, tmp_path / "another checkpoint")
    assert sorted(archived(conn)) == mine + more


def test_two_actions_on_a_batch_lease_once(
    spark: SparkSession, publish: Publish, conn: Connection, tmp_path: Path
) -> None:
    publish(8)
    counts: list[tuple[int, int]] = []

    def count_twice(batch: DataFrame, number: int) -> None:
        counts.append((batch.count(), batch.count()))

    query = lease_stream(spark).writeStream.foreachBatch(count_twice).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
    assert counts == [(8, 8)]
    assert [attempts for _, attempts in waiting(conn)] == [1] * 8
