"""The batch read: what it gives, in how many ranges, under which privileges, and what it never shows."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, PermissionDenied
from airflow_provider_pgqueue.core.errors import InvalidQueueName, QueueNotFound, SchemaMissing, SchemaTooOld
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark import register
from airflow_provider_pgqueue.spark.source.data_source import data_source
from airflow_provider_pgqueue.spark.source.options import names
from airflow_provider_pgqueue.spark.source.read import OPTIONS, RangeReader
from airflow_provider_pgqueue.spark.source.tables import table_of
from tests.waiting import until
from tools import ROOT

Connection = psycopg.Connection[tuple[Any, ...]]
Read = Callable[..., DataFrame]

ARCHIVE = """
    INSERT INTO messages.message_archive
        (queue_name, result, created_at, archived_at, attempts, reference, headers, message)
    SELECT (ARRAY['orders', 'mail'])[1 + n %% 2],
           CASE WHEN n > 1000 THEN 'success' ELSE (ARRAY['success', 'failed', 'rejected'])[1 + n %% 3] END,
           now() - interval '1 hour', clock_timestamp(), n %% 5, 'order ' || n,
           jsonb_build_object('n', n), jsonb_build_object('number', n, 'text', repeat('x', 300))
      FROM generate_series(1, %s) AS n
"""
MONTHS = """
    CREATE TABLE messages.message_archive_202503 PARTITION OF messages.archive_rows
        FOR VALUES FROM ('2025-03-01Z') TO ('2025-04-01Z');
    CREATE TABLE messages.message_archive_202504 PARTITION OF messages.archive_rows
        FOR VALUES FROM ('2025-04-01Z') TO ('2025-05-01Z');
    INSERT INTO messages.message_archive (result, created_at, archived_at, message)
    SELECT 'success', '2025-03-01Z', moment, '1'
      FROM generate_series('2025-03-01 00:00Z'::timestamptz, '2025-04-30 23:59:59Z', '1 hour') AS moment;
"""
FAR = """
    INSERT INTO messages.message_archive (result, created_at, archived_at, message)
    SELECT 'success', now(), now() + n * interval '1 month', '1' FROM generate_series(1, 60) AS n
"""
JSON = ("headers", "output", "failure", "message")


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """Read the archive with options: `read(columns="id")`."""

    def load(**options: Any) -> DataFrame:
        return spark.read.format("pgqueue").options(**named(options)).load()

    return load


def named(options: dict[str, Any]) -> dict[str, str]:
    return {"table": "archive"} | {key.rstrip("_"): str(value) for key, value in options.items()}


def reader(dsn: str, **options: Any) -> RangeReader:
    """A reader without Spark, as the driver and an executor have it."""
    given = named(options)
    return RangeReader(Database(dsn), given, table_of(given).spark_schema(names(given, "columns")))


def ids_in(reader: RangeReader, ranges: list[Any]) -> list[int]:
    return [id for one in ranges for batch in reader.read(one) for id in batch.column("id").to_pylist()]


def in_sql(
    conn: Connection, selected: str, table: str = "message_archive", where: str = "true"
) -> list[tuple[Any, ...]]:
    """What SQL gives, with times as Spark's `collect()` has them."""
    parts = (sql.SQL(selected), sql.Identifier(table), sql.SQL(where))
    query = sql.SQL("SELECT {} FROM messages.{} WHERE {} ORDER BY 1").format(*parts)
    return [
        tuple(value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value for value in row)
        for row in conn.execute(query).fetchall()
    ]


def count(conn: Connection, where: str = "true") -> int:
    query = sql.SQL("SELECT count(*) FROM messages.message_archive WHERE {}").format(sql.SQL(where))
    return int(conn.execute(query).fetchone()[0])


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def ids_of(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


# What it gives


def test_the_archive_reads_as_sql_gives_it(read: Read, conn: Connection) -> None:
    conn.execute(ARCHIVE, [1000])
    conn.execute('UPDATE messages.message_archive SET message = \'{"ü": "\\u0001\\\\ \\" 𝄞"}\' WHERE id % 7 = 0')
    frame = read(columns="*")
    selected = ", ".join(f"{name}::text" if name in JSON else name for name in frame.columns)
    assert sorted(map(tuple, frame.collect())) == sorted(in_sql(conn, selected))


def test_the_queue_reads_as_sql_gives_it_and_nothing_is_leased(
    read: Read, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute("SELECT messages.publish('orders', to_jsonb(n), priority => 2) FROM generate_series(1, 500) AS n")
    conn.execute("SELECT messages.lease('orders', 10)")
    before = in_sql(conn, "ctid, xmin, attempts, lock_token", "message")
    frame = read(table="queue", columns="*")
    selected = ", ".join(f"{name}::text" if name in JSON else name for name in frame.columns)
    assert sorted(map(tuple, frame.collect())) == sorted(in_sql(conn, selected, "message"))
    assert in_sql(conn, "ctid, xmin, attempts, lock_token", "message") == before
    assert "lock_token" not in frame.columns


def test_a_body_is_read_only_when_it_is_asked_for() -> None:
    for name in ("archive", "queue"):
        table = table_of({"table": name})
        assert set(table.select(["*"])) - set(table.select()) == {"message"}


def test_an_infinite_moment_reads_as_null(read: Read, conn: Connection) -> None:
    conn.execute("INSERT INTO messages.message (message, expires_at) VALUES ('1', NULL), ('2', '2031-01-01Z')")
    conn.execute("UPDATE messages.message_rows SET expires_at = 'infinity' WHERE expires_at IS NULL")
    frame = read(table="queue", columns="message,expires_at")
    assert {tuple(row) for row in frame.collect()} == {
        ("1", None),
        ("2", datetime(2031, 1, 1, tzinfo=UTC).astimezone().replace(tzinfo=None)),
    }


def test_a_given_schema_chooses_columns(spark: SparkSession, conn: Connection) -> None:
    conn.execute(ARCHIVE, [3])
    frame = spark.read.format("pgqueue").option("table", "archive").schema("attempts short, id long NOT NULL").load()
    assert sorted(map(tuple, frame.collect())) == sorted(in_sql(conn, "attempts, id"))
    with pytest.raises(Exception, match=r"column 'attempts' is smallint, not string\. Leave out schema\(\)"):
        spark.read.format("pgqueue").option("table", "archive").schema("attempts string").load().collect()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"queue": "orders"}, "queue_name = 'orders'"),
        ({"queue": "orders,mail", "result": "failed, rejected"}, "result <> 'success'"),
        ({"queue": "orders", "result": "success"}, "queue_name = 'orders' AND result = 'success'"),
        ({"where": "queue_name = 'gone_since'"}, "false"),
        ({"reference": "order 7"}, "reference = 'order 7'"),
        ({"reference": "order 1,order 2"}, "false"),
        ({"topic": "orders.*.created"}, "topic = 'orders.eu.created'"),
        ({"topic": "orders.#"}, "topic LIKE 'orders%'"),
        ({"topic": "ord"}, "false"),
        ({"where": "attempts > 3 OR id = 1"}, "attempts > 3 OR id = 1"),
        ({"where": "attempts > 3 OR id = 1", "queue": "mail"}, "(attempts > 3 OR id = 1) AND queue_name = 'mail'"),
        ({"where": "reference LIKE '%9' -- nines"}, "reference LIKE '%9'"),
        ({"where": "headers @> '{\"n\": 3}'"}, "headers @> '{\"n\": 3}'"),
        (
            {"where": "id IN (SELECT max(a.id) FROM messages.message_archive a)"},
            "id = (SELECT max(id) FROM messages.message_archive)",
        ),
    ],
)
def test_options_choose_rows(
    dsn: str, conn: Connection, queue: Callable[..., str], options: dict[str, str], where: str
) -> None:
    queue("orders")
    queue("mail")
    conn.execute(ARCHIVE, [60])
    conn.execute("UPDATE messages.message_archive SET topic = (ARRAY['orders.eu.created', 'orders'])[1 + id % 3]")
    reading = reader(dsn, columns="id", **options)
    assert sorted(ids_in(reading, reading.partitions())) == [id for (id,) in in_sql(conn, "id", where=where)]


# In ranges


def test_any_number_of_ranges_gives_the_same_rows(read: Read, conn: Connection) -> None:
    conn.execute(ARCHIVE, [12000])
    wanted = sorted(in_sql(conn, "id, message::text"))
    for least, parallel in ((4, 4), (5, 16)):
        frame = read(columns="id,message", numPartitions=parallel)
        assert least <= frame.rdd.getNumPartitions() <= parallel
        assert sorted(map(tuple, frame.collect())) == wanted


def test_ranges_hold_about_the_same(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [40000])
    conn.execute(MONTHS)
    reading = reader(dsn, numPartitions=6)
    ranges = reading.partitions()
    sizes = [len(ids_in(reading, [one])) for one in ranges]
    assert len(sizes) == 6
    assert max(sizes) < 2 * min(sizes)


def test_ranges_of_large_bodies_hold_about_the_same(dsn: str, conn: Connection) -> None:
    body = sql.Literal(json.dumps(secrets.token_urlsafe(112_000)))  # 150 kB that do not compress, all of it in TOAST
    conn.execute(
        sql.SQL(
            "INSERT INTO messages.message_archive (result, created_at, archived_at, message)"
            " SELECT 'success', now(), clock_timestamp(), {} FROM generate_series(1, 200)"
        ).format(body)
    )
    reading = reader(dsn, numPartitions=2, columns="id")
    statements = [statement for one in reading.partitions() for statement in one.value]
    sizes = [size for statement in statements if (size := len(ids_in(reading, [InputPartition([statement])])))]
    assert (len(sizes), sum(sizes)) == (8, 200)
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("options", [{"reference": "order 77"}, {"where": "id = 77"}], ids=str)
def test_what_an_index_finds_is_one_statement(dsn: str, conn: Connection, options: dict[str, str]) -> None:
    conn.execute(ARCHIVE, [12000])
    conn.execute("ANALYZE messages.archive_rows")
    reading = reader(dsn, columns="id", numPartitions=8, **options)
    (only,) = reading.partitions()
    (statement,) = only.value
    assert "Index" in str(conn.execute(f"EXPLAIN {statement}".encode()).fetchall())
    assert ids_in(reading, [only]) == [77]
    whole = reader(dsn, columns="id", numPartitions=8, where="attempts >= 0")
    assert len(whole.partitions()) > 1


def test_a_queue_that_does_not_exist_is_named(
    read: Read, dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute(ARCHIVE, [4])
    for table in ("archive", "queue"):
        with pytest.raises(QueueNotFound, match=r"queue 'order' does not exist\. Check its spelling\."):
            reader(dsn, table=table, columns="id", queue="orders,order").partitions()
    with pytest.raises(Exception, match="QueueNotFound: queue 'mail' does not exist"):
        read(columns="id", queue="mail").count()
    assert read(columns="id", where="queue_name = 'mail'").count() == 2


def test_what_is_small_is_not_cut(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [100])
    assert len(reader(dsn, numPartitions=16).partitions()) == 1


def test_an_update_between_two_ranges_neither_doubles_nor_loses_a_row(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [12000])
    reading = reader(dsn, columns="id", numPartitions=4)
    ranges = reading.partitions()
    seen = ids_in(reading, ranges[:2])
    moved = conn.execute(
        "UPDATE messages.message_archive SET resolution = 'dismissed', dismissed_for = 'why' WHERE id % 2 = 0"
    )
    assert moved.rowcount > 1000
    seen += ids_in(reading, ranges[2:])
    assert len(seen) == 12000
    assert len(set(seen)) == 12000


def test_a_lease_between_two_ranges_neither_doubles_nor_loses_a_message(
    dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute(
        "SELECT messages.publish('orders', jsonb_build_object('x', repeat('x', 300))) FROM generate_series(1, 5000)"
    )
    reading = reader(dsn, table="queue", columns="id", numPartitions=4)
    ranges = reading.partitions()
    seen = ids_in(reading, ranges[:2])
    for _ in range(3):
        conn.execute("UPDATE messages.message SET attempts = attempts + 1")
    seen += ids_in(reading, ranges[2:])
    assert len(ranges) == 4
    assert sorted(seen) == sorted(id for (id,) in in_sql(conn, "id", "message"))


def test_what_was_archived_before_the_read_comes_once_while_others_archive(
    read: Read, conn: Connection, connect: Callable[..., Connection]
) -> None:
    conn.execute(ARCHIVE, [12000])
    before = {id for (id,) in in_sql(conn, "id")}
    stop, other = Event(), connect()

    def archive() -> None:
        while not stop.is_set():
            other.execute(ARCHIVE, [50])

    thread = Thread(target=archive)
    thread.start()
    try:
        seen = [id for (id,) in read(columns="id", numPartitions=16).collect()]
    finally:
        stop.set()
        thread.join()
    assert count(conn) > len(before)
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


def test_rows_of_the_default_partition_are_read(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [12000])
    conn.execute(MONTHS)
    conn.execute("UPDATE messages.message_archive SET archived_at = archived_at + interval '3 years' WHERE id % 3 = 0")
    assert conn.execute("SELECT count(*) > 3000 FROM messages.message_archive_default").fetchone() == (True,)
    reading = reader(dsn, columns="id", numPartitions=5)
    assert sorted(ids_in(reading, reading.partitions())) == sorted(id for (id,) in in_sql(conn, "id"))


def test_each_statement_is_a_transaction_of_its_own(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [12000])
    reading = reader(dsn, columns="id", numPartitions=1)
    (whole,) = reading.partitions()
    mine = "SELECT xact_start FROM pg_stat_activity WHERE application_name = 'pgqueue spark read'"
    begun = [conn.execute(mine).fetchone() for _ in reading.read(whole)]
    assert len(begun) == len(set(begun)) == 4


def test_reading_cannot_write(dsn: str) -> None:
    writes = InputPartition(["SELECT nextval('messages.message_id_seq') AS id"])
    with pytest.raises(ConnectionFailed, match=r"cannot execute nextval\(\) in a read-only transaction"):
        list(reader(dsn, columns="id").read(writes))


# Time


def test_a_span_of_time_reads_its_partitions_only(dsn: str, conn: Connection) -> None:
    conn.execute(MONTHS)
    reading = reader(dsn, columns="archived_at", since="2025-04-02T00:00:00Z", until="2025-04-03T02:00:00+02:00")
    (only,) = reading.partitions()
    (statement,) = only.value
    hours = [moment for batch in reading.read(only) for moment in batch.column(0).to_pylist()]
    assert sorted(hours) == [datetime(2025, 4, 2, tzinfo=UTC) + timedelta(hours=n) for n in range(24)]
    explained = "".join(line for (line,) in conn.execute(f"EXPLAIN {statement}".encode()).fetchall())
    assert "message_archive_202504" in explained
    assert "message_archive_202503" not in explained


def test_an_empty_span_reads_nothing(dsn: str, conn: Connection) -> None:
    conn.execute(MONTHS)
    reading = reader(dsn, since="2025-04-01T00:00:00Z", until="2025-04-01T00:00:00Z")
    assert reading.partitions() == []
    assert list(reading.read(None)) == []


# Conditions


def test_a_frame_serves_many_queries(read: Read, conn: Connection) -> None:
    frame = read(columns="id,result")
    assert frame.count() == 0
    conn.execute(ARCHIVE, [10])
    assert ids_of(frame.where("id = 3")) == [3]
    assert ids_of(frame.where("id = 4 OR id % 5 = 0")) == [4, 5, 10]
    conn.execute(MONTHS)
    conn.execute(FAR)
    assert frame.count() == count(conn) > 1000


HOSTILE = ["'; DROP TABLE messages.message_archive; --", "\\", "\\' OR true --", "%s %(x)s {} {0}", "$1", "a\nb\t", "𝄞"]


def test_hostile_values_are_only_values(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [len(HOSTILE)])
    for id, value in enumerate(HOSTILE, start=1):
        conn.execute("UPDATE messages.message_archive SET reference = %s WHERE id = %s", [value, id])
    for id, value in enumerate(HOSTILE, start=1):
        for options in ({"reference": value}, {"where": f"reference = {sql.Literal(value).as_string(conn)}"}):
            reading = reader(dsn, columns="id", **options)
            assert ids_in(reading, reading.partitions()) == [id]


ESCAPES = [
    "id = 1) OR (true",
    "id = 1) OR true --",
    "id = 1) OR true /*",
    "true) ; DROP TABLE messages.message_archive ; SELECT (true",
    "true ; DROP TABLE messages.message_archive",
    "true); COMMIT; DROP TABLE messages.message_archive; SELECT (true",
    "true ORDER BY id LIMIT 1",
    "true UNION SELECT id FROM messages.message",
    "SELECT true",
    "true, true",
    "(true",
    "reference = 'a",
    "reference = $a$ b",
    "true /* a",
    "reference = $1",
    "",
    "--",
    "priority",
    "no_such_column = 1",
    "id =",
    "true\0",
]


def test_a_condition_that_is_more_or_less_than_one_is_refused(
    dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute(ARCHIVE, [3])
    for where in ESCAPES:
        with pytest.raises(InvalidArgument, match=r"option where is not a condition .*Give one condition on"):
            reader(dsn, columns="id", where=where, queue="orders").partitions()
    assert count(conn) == 3


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("nextval('messages.message_id_seq') > 0", r"cannot execute nextval\(\) in a read-only transaction"),
        ("set_config('transaction_read_only', 'off', true) = 'off'", "read-write mode must be set before any query"),
        ("1 / (id - 2) >= 0", "division by zero"),
        ("id = (SELECT n FROM generate_series(1, 2) AS n)", "more than one row"),
    ],
)
def test_a_condition_that_writes_or_fails_is_named(dsn: str, conn: Connection, where: str, why: str) -> None:
    conn.execute(ARCHIVE, [3])
    before = conn.execute("SELECT last_value, is_called FROM messages.message_id_seq").fetchone()
    reading = reader(dsn, columns="id", where=where)
    with pytest.raises(InvalidArgument, match=f"option where fails: .*{why}.* Give one that only reads"):
        ids_in(reading, reading.partitions())
    assert conn.execute("SELECT last_value, is_called FROM messages.message_id_seq").fetchone() == before


@pytest.mark.parametrize("body", ["4711 \n canary", '4711", "canary', "4711« canary"])
def test_a_condition_that_fails_for_a_row_shows_nothing_of_it(dsn: str, conn: Connection, body: str) -> None:
    conn.execute(ARCHIVE, [1])
    conn.execute("UPDATE messages.message_archive SET message = to_jsonb(%s::text)", [body])
    reading = reader(dsn, columns="id", where="message::text::date > now()")
    with pytest.raises(InvalidArgument, match=r"option where fails: .*…\. Give one") as refused:
        ids_in(reading, reading.partitions())
    assert "canary" not in str(refused.value)
    assert "4711" not in str(refused.value)


def test_a_condition_is_run_with_the_rights_of_the_reader(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [3])
    with login(conn, dsn, "analyst", "messages_reader") as theirs:
        reading = reader(theirs, columns="id", where="EXISTS (SELECT FROM pg_authid)")
        with pytest.raises((PermissionDenied, InvalidArgument), match="permission denied for table pg_authid"):
            reading.partitions()


# As the documentation says


def test_the_documented_reads_run(
    spark: SparkSession, dsn: str, conn: Connection, queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue("orders")
    conn.execute(ARCHIVE, [3])
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    page = (ROOT / "docs" / "reference" / "spark-source.md").read_text().partition("## Publish")[0]
    examples = re.findall(r"```py\n(.*?)```", page, re.S)
    assert len(examples) == 4
    where = conninfo_to_dict(dsn)
    server = f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}"
    for example in examples:
        here = example.replace("jdbc:postgresql://localhost:5432/shop", server).replace(
            '"spark")', f'"{where["user"]}")'
        )
        named = {"spark": spark}
        exec(compile(here, "the documentation", "exec"), named)
        if "daily" in named:
            assert sorted((row.queue_name, row.messages) for row in named["daily"].collect()) == sorted(
                conn.execute("SELECT queue_name, count(*) FROM messages.message_archive GROUP BY 1, result").fetchall()
            )


# From a catalog


def test_a_temporary_view_reads_what_its_options_say(
    spark: SparkSession, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("mail")
    conn.execute(ARCHIVE, [4])
    options = "table 'archive', queue 'mail', columns 'id,queue_name'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW finished USING pgqueue OPTIONS ({options})")
    assert [tuple(row) for row in spark.sql("SELECT id, queue_name FROM finished ORDER BY id").collect()] == [
        (1, "mail"),
        (3, "mail"),
    ]


# Who may


@contextmanager
def login(conn: Connection, dsn: str, name: str, *groups: str) -> Iterator[str]:
    """The DSN of a new role in these groups."""
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(sql.Identifier(name)))
    try:
        for group in groups:
            conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(name)))
        yield make_conninfo(dsn, user=name, password="hunter2")
    finally:
        conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize("group", ["messages_reader", "messages_pipeline"])
def test_the_role_of_a_reader_is_enough_to_read(
    dsn: str, conn: Connection, queue: Callable[..., str], group: str
) -> None:
    conn.execute(ARCHIVE, [12000])
    queue("orders")
    with login(conn, dsn, "analyst", group) as theirs:
        one = reader(theirs, columns="id", queue="orders", reference="order 8")
        assert ids_in(one, one.partitions()) == [8]
        for table, number in (("archive", 12000), ("queue", 0)):
            reading = reader(theirs, table=table, columns="id", numPartitions=4)
            assert len(ids_in(reading, reading.partitions())) == number


@pytest.mark.parametrize("groups", [(), ("messages_consumer",)])
def test_without_the_role_of_a_reader_the_error_names_the_fix(
    dsn: str, conn: Connection, groups: tuple[str, ...]
) -> None:
    conn.execute(ARCHIVE, [12000])  # what is smaller is not looked at before it is read
    fix = pytest.raises(PermissionDenied, match="GRANT messages_reader TO stranger")
    with login(conn, dsn, "stranger", *groups) as theirs, fix:
        reader(theirs).partitions()


def test_a_privilege_that_is_taken_after_the_plan_says_so(dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [1])
    with login(conn, dsn, "analyst", "messages_reader") as theirs:
        reading = reader(theirs)
        (only,) = reading.partitions()
        conn.execute("REVOKE messages_reader FROM analyst")
        with pytest.raises(PermissionDenied, match=r"permission denied .* messages_reader"):
            list(reading.read(only))


# What is wrong


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"columns": "id,nosuch"}, InvalidArgument, "the archive has no column 'nosuch'. It has id, queue_name,"),
        ({"columns": "id,id"}, InvalidArgument, "column 'id' is named twice"),
        ({"columns": "id,,xid"}, InvalidArgument, "option columns is 'id,,xid', with an empty name"),
        ({"table": "dead"}, InvalidArgument, "option table is 'dead'. Give one of archive, queue."),
        ({"queues": "orders"}, InvalidArgument, "there is no option 'queues'. A read takes " + ", ".join(OPTIONS)),
        ({"queue": "Orders"}, InvalidQueueName, "names 'Orders', which no queue can have"),
        ({"result": "dead"}, InvalidArgument, "names 'dead'. Give some of success, failed,"),
        ({"table": "queue", "result": "failed"}, InvalidArgument, "the queue has no results"),
        ({"since": "yesterday"}, InvalidArgument, "option since is 'yesterday'. Give a time with its time zone"),
        ({"until": "2025-01-01T00:00:00"}, InvalidArgument, "Give a time with its time zone, such as"),
        ({"since": "2025-01-02T00Z", "until": "2025-01-01T00Z"}, InvalidArgument, "is after option until"),
        ({"from": "2025-01-01T00Z"}, InvalidArgument, "there is no option 'from'"),
        ({"numPartitions": "0"}, InvalidArgument, "option numPartitions is '0'. Give a whole number from 1"),
        ({"topic": "orders..eu"}, InvalidArgument, "option topic is 'orders..eu'. Use words, * for any word"),
        ({"pushFilters": "true"}, InvalidArgument, "there is no option 'pushFilters'. A read takes"),
        ({"dbtable": "x"}, InvalidArgument, "Use table, which is archive or queue"),
        ({"FETCHSIZE": "1000"}, InvalidArgument, "A read is cut into statements by itself"),
        ({"subscribe": "orders"}, InvalidArgument, "Use queue."),
        ({"startingOffsets": "earliest"}, InvalidArgument, "a batch read takes since and until"),
        ({"partitionColumn": "id"}, InvalidArgument, "numPartitions is how many at most"),
        ({"kafka.bootstrap.servers": "a:9092"}, InvalidArgument, "register(spark, conninfo) or in PGQUEUE_DSN"),
        ({"password": "hunter2"}, InvalidArgument, "register(spark, conninfo) or in PGQUEUE_DSN"),
        ({"path": "/data"}, InvalidArgument, "Call load() and save() without a path."),
        ({"numPartitions": "many"}, InvalidArgument, "option numPartitions is 'many'"),
    ],
)
def test_a_wrong_option_names_the_value_and_the_fix(
    options: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        reader("", **options)


def test_a_read_without_a_table_names_the_two(session: SparkSession) -> None:
    for load in (session.read, session.readStream):
        with pytest.raises(Exception, match=r"option table is missing\. Give archive \(.*\) or queue \("):
            load.format("pgqueue").load()


def test_a_stream_of_a_queue_is_refused_and_drain_named() -> None:
    source = data_source(Database(""))({"table": "queue", "queue": "orders"})
    with pytest.raises(
        InvalidArgument, match=r"a stream follows the archive, not a queue\. Work off a queue with drain"
    ):
        source.streamReader(source.schema())


def test_a_database_without_the_schema_says_how_to_install_it(empty_dsn: str) -> None:
    with pytest.raises(SchemaMissing, match=r"psql -f sql/install\.sql"):
        reader(empty_dsn).partitions()


def test_an_old_schema_says_so(dsn: str, conn: Connection) -> None:
    conn.execute("DELETE FROM messages.schema_migration")
    with pytest.raises(SchemaTooOld, match="has version 0, this package needs"):
        reader(dsn).partitions()


LARGE = """
    INSERT INTO messages.message_archive (result, created_at, message)
    SELECT 'success', now(), to_jsonb(repeat('x', 2000000)) FROM generate_series(1, %s)
"""


def test_a_connection_that_breaks_is_an_error_and_no_short_result(dsn: str, conn: Connection) -> None:
    conn.execute(LARGE, [30])
    reading = reader(dsn, columns="message", numPartitions=1)
    batches = reading.read(*reading.partitions())
    next(batches)
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'pgqueue spark read'"
    )
    with pytest.raises(ConnectionFailed, match=r"a range could not be read: .* read again"):
        list(batches)


def test_a_broken_statement_is_not_quoted(dsn: str) -> None:
    broken = InputPartition(["SELECT 1 / 0 AS id WHERE 'hunter2' <> ''"])
    with pytest.raises(ConnectionFailed, match="division by zero") as raised:
        list(reader(dsn, columns="id").read(broken))
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_large_range_streams_through_little_memory(dsn: str, conn: Connection) -> None:
    conn.execute(LARGE, [100])
    script = """
import resource, sys
from tests.spark.test_reader import InputPartition, reader
reading = reader(sys.argv[1], columns="message")
whole = InputPartition([reading.statement()])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = sum(batch.nbytes for batch in reading.read(whole))
print(size // 2**20, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 2**10)
"""
    done = subprocess.run([sys.executable, "-c", script, dsn], capture_output=True, text=True, check=True)
    read_mb, grown_mb = map(int, done.stdout.split())
    assert read_mb > 180
    assert grown_mb < 90


def test_a_read_that_stops_early_leaves_no_session(read: Read, conn: Connection) -> None:
    conn.execute(LARGE, [30])
    assert len(read(columns="message").take(1)) == 1
    sessions = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgqueue spark%'"
    until(lambda: not conn.execute(sessions).rowcount, what="the end of all sessions")


# What it never shows


@contextmanager
def jvm_log(session: SparkSession, level: str) -> Iterator[Any]:
    """What Spark's driver logs, as a Java StringWriter."""
    log4j = session._jvm.org.apache.logging.log4j
    writer = session._jvm.java.io.StringWriter()
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, writer, "test", False, True)
    appender.start()
    root.addAppender(appender, None, None)
    session.sparkContext.setLogLevel(level)
    try:
        yield writer
    finally:
        session.sparkContext.setLogLevel("ERROR")
        root.removeAppender("test")


def test_the_connection_stands_in_no_plan_and_no_log(session: SparkSession, dsn: str, conn: Connection) -> None:
    conn.execute(ARCHIVE, [100])
    with login(conn, dsn, "analyst", "messages_reader") as theirs, jvm_log(session, "DEBUG") as log:
        register(session, theirs)
        frame = (
            session.read.format("pgqueue")
            .option("table", "archive")
            .option("columns", "id,reference")
            .load()
            .where("reference = 'order 7'")
        )
        frame.collect()
        plan = frame._jdf.queryExecution().toString() + plan_of(frame)
        configured = str(session.sparkContext.getConf().getAll()) + str(frame.schema)
    logged = str(log.toString())
    assert "Starting task" in logged
    for shown in (plan, configured, logged):
        assert "hunter2" not in shown
        assert theirs not in shown
        assert "port=" not in shown
