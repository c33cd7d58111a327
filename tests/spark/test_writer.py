"""`df.write` and `writeStream` to `pgqueue`: each row is published once, whatever dies, runs twice or is run again."""

from __future__ import annotations

import json
import re
import secrets
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core import (
    InvalidArgument,
    InvalidMessage,
    PermissionDenied,
    PgQueueError,
    QueueNotFound,
)
from airflow_provider_pgqueue.core.errors import MessageTooLarge, StageIncomplete
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark import register
from airflow_provider_pgqueue.spark.source.data_source import data_source
from airflow_provider_pgqueue.spark.source.staging import Stage
from airflow_provider_pgqueue.spark.source.writer import (
    PublishOptions,
    PublishStreamWriter,
    PublishWriter,
)
from tests.core.roles.test_roles import logins
from tests.waiting import until, until_waiting
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
NewStage = Callable[..., Stage]
Connect = Callable[..., Connection]
Team = Callable[[str], Stage]
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def rows(*messages: Any, **columns: list[Any]) -> Iterator[pa.RecordBatch]:
    """Give rows as Spark gives them to a task; each message becomes JSON text unless it is text already."""
    texts = [one if isinstance(one, str) or one is None else json.dumps(one) for one in messages]
    yield pa.record_batch({"message": pa.array(texts, pa.string())} | {k: pa.array(v) for k, v in columns.items()})


def bodies(conn: Connection, queue_name: str = "") -> list[Any]:
    """Return what waits, in its order, in all queues or in one."""
    query = "SELECT message FROM messages.message WHERE %s IN ('', queue_name) ORDER BY visible_at"
    return [body for (body,) in conn.execute(query, [queue_name])]


def stages(conn: Connection) -> int:
    (number,) = conn.execute(r"SELECT count(*) FROM pg_class WHERE relname ~ '^publish_stage_\d+$'").fetchone() or (0,)
    assert conn.execute("SELECT FROM messages.publish_stage").rowcount == number
    return int(number)


@pytest.fixture
def stage(dsn: str) -> NewStage:
    return lambda stage_id="job", **options: Stage(Database(dsn), stage_id, **({"queue_name": "orders"} | options))


# Through Spark --------------------------------------------------------------------------------------------------------


def publish(frame: DataFrame, **options: Any) -> None:
    frame.write.format("pgqueue").mode("append").options(**options).save()


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 10, 1, 2).selectExpr("cast(id AS string) AS message")


def test_a_thread_that_registers_can_write(session: SparkSession, dsn: str, conn: Connection, queue: Queue) -> None:
    def write(number: int) -> None:
        register(session, dsn)
        # Not by createDataFrame(), which makes the session active as well.
        rows = session.range(number, number + 1).selectExpr("CAST(id AS string) AS message")
        rows.write.format("pgqueue").option("queue", "orders").mode("append").save()

    queue("orders")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    assert conn.execute("SELECT array_agg(message ORDER BY message) FROM messages.message").fetchone() == ([0, 1],)


def test_rows_arrive_once_with_all_columns(spark: SparkSession, conn: Connection, queue: Queue) -> None:
    queue("orders")
    queue("bills")
    frame = spark.sql(
        r"""
        SELECT to_json(named_struct('id', id, 'text', 'a\tb\n"ü\\')) AS message, 'line\n\\two\t' AS reference,
               '{"source": "shop"}' AS headers, 'shop.order' AS topic, concat('group-', id) AS group_key,
               concat('key-', id) AS dedup_key, if(id = 0, NULL, id) AS priority,
               now() + interval 1 day AS visible_at, date_trunc('day', now()) + interval 2 days AS expires_at,
               if(id < 2, 'orders', 'bills') AS queue_name
          FROM range(0, 3, 1, 1)
        """
    )
    publish(frame)
    published = "SELECT queue_name, message, reference, group_key, priority FROM messages.message ORDER BY id"
    assert conn.execute(published).fetchall() == [
        ("orders", {"id": 0, "text": 'a\tb\n"ü\\'}, "line\n\\two\t", "group-0", 4),
        ("orders", {"id": 1, "text": 'a\tb\n"ü\\'}, "line\n\\two\t", "group-1", 1),
        ("bills", {"id": 2, "text": 'a\tb\n"ü\\'}, "line\n\\two\t", "group-2", 2),
    ]  # fmt: skip
    assert conn.execute(
        "SELECT DISTINCT headers, topic, coalesce(due_at, visible_at) - created_at BETWEEN '23:59' AND '24:00',"
        " expires_at = date_trunc('day', created_at, 'UTC') + interval '2 days' FROM messages.message"
    ).fetchall() == [({"source": "shop"}, "shop.order", True, True)]
    assert conn.execute("SELECT dedup_key FROM messages.dedup ORDER BY 1").fetchall() == [
        ("key-0",),
        ("key-1",),
        ("key-2",),
    ]
    assert stages(conn) == 0


def test_columns_have_the_case_of_their_source(spark: SparkSession, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(
        spark.sql("SELECT to_json(named_struct('ID', 7)) AS MESSAGE, 'order-7' AS Reference, 'orders' AS QUEUE_NAME")
    )
    published = conn.execute("SELECT message, reference FROM messages.message").fetchall()
    assert published == [({"ID": 7}, "order-7")]


def test_the_documented_example_publishes(
    session: SparkSession, dsn: str, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue()
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    pages = (page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    (example,) = [code for page in pages for code in re.findall(r"```py\n(.*?)```", page, re.S) if '"runId"' in code]
    exec(compile(example, "the documentation", "exec"), {})
    assert conn.execute("SELECT count(DISTINCT reference) FROM messages.message").fetchone() == (1000,)


def test_one_bad_row_fails_the_job_without_showing_a_body(spark: SparkSession, conn: Connection, queue: Queue) -> None:
    queue()
    # One task: maintenance drops what another one still writes.
    frame = spark.sql("""SELECT if(id = 6, '{"canary"', '1') AS message FROM range(0, 10, 1, 1)""")
    with pytest.raises(Exception, match="row 7 of partition 0 cannot be published") as failed:
        publish(frame, queue="orders")
    assert "canary" not in "".join(traceback.format_exception(failed.value))
    assert (bodies(conn), stages(conn)) == ([], 0)


def test_overwrite_and_an_unknown_queue_fail_before_any_task(spark: SparkSession, conn: Connection) -> None:
    with pytest.raises(Exception, match="queue 'nowhere' does not exist"):
        publish(numbers(spark), queue="nowhere")
    with pytest.raises(Exception, match="cannot be overwritten"):
        numbers(spark).write.format("pgqueue").mode("overwrite").option("queue", "orders").save()
    assert stages(conn) == 0


# Stages ---------------------------------------------------------------------------------------------------------------


def test_of_two_attempts_of_a_partition_only_the_winner_is_published(
    conn: Connection, queue: Queue, stage: NewStage
) -> None:
    queue()
    stage().put(0, rows(1))
    winner = stage().put(0, rows(2))
    other = stage().put(1, rows(3))
    stage().put(1, rows(4))
    done = stage().publish([winner, other], run_id="job")
    assert done == {"rows": 2, "published": 2, "duplicates": 0}
    assert bodies(conn) == [2, 3]
    assert stages(conn) == 0


def test_rows_come_in_the_order_of_partition_and_row(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    late = stage().put(1, (batch for values in ([6, 7], [], [8]) for batch in rows(*values)))
    early = stage().put(0, rows(*range(6)))
    stage().publish([late, early], run_id="job")
    assert bodies(conn) == list(range(9))
    steps = conn.execute("SELECT visible_at - lag(visible_at) OVER (ORDER BY visible_at) FROM messages.message")
    assert set(steps.fetchall()[1:]) == {(timedelta(microseconds=1),)}
    leased = [conn.execute("SELECT message FROM messages.lease('orders', 1)").fetchone() for _ in range(9)]
    assert leased == [(number,) for number in range(9)]


def test_a_group_keeps_the_order_of_its_rows(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    second = stage().put(1, rows(3, 4, group_key=["g", "g"]))
    first = stage().put(0, rows(1, 2, group_key=["g", "g"]))
    stage().publish([second, first], run_id="job")
    seen = []
    while leased := conn.execute("SELECT message, lock_token, id FROM messages.lease('orders', 10)").fetchall():
        ((body, token, message_id),) = leased
        conn.execute("SELECT messages.archive(%s, %s)", [token, [message_id]])
        seen.append(body)
    assert seen == [1, 2, 3, 4]


def test_publishing_notifies(conn: Connection, connect: Connect, queue: Queue, stage: NewStage) -> None:
    queue()
    listener = connect()
    listener.execute("LISTEN new_message")
    staged = stage().put(0, rows(1))
    assert list(listener.notifies(timeout=0.2)) == []
    stage().publish([staged], run_id="job")
    (notified,) = listener.notifies(timeout=5, stop_after=1)
    assert conn.execute("SELECT id FROM messages.message").fetchall() == [(int(notified.payload),)]


def test_a_dedup_key_is_published_once_in_its_window(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue(dedup_window="1 hour")

    def job(name: str, *messages: int, keys: list[str | None], **options: str) -> dict[str, Any]:
        staged = stage(name).put(0, rows(*messages, dedup_key=keys))
        return stage(name, **options).publish([staged], run_id=name)

    assert job("one", 1, 2, 3, 4, keys=["a", "b", "a", None])["duplicates"] == 1
    assert job("two", 5, 6, 7, keys=["a", "c", None], dedup_window="1 second") == {
        "rows": 3,
        "published": 2,
        "duplicates": 1,
    }
    assert bodies(conn) == [1, 2, 4, 6, 7]
    assert conn.execute(
        "SELECT d.dedup_key, m.message, d.expires_at - m.created_at"
        " FROM messages.dedup d JOIN messages.message m USING (id) ORDER BY 1"
    ).fetchall() == [("a", 1, HOUR), ("b", 2, HOUR), ("c", 6, SECOND)]
    conn.execute("UPDATE messages.dedup SET expires_at = clock_timestamp()")
    assert job("three", 8, keys=["a"])["published"] == 1
    with pytest.raises(InvalidArgument, match="dedup_window"):
        job("four", 9, keys=["a"], dedup_window="400 days")


def test_rows_that_are_gone_publish_nothing(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    staged = [stage().put(partition, rows(partition)) for partition in range(3)]
    conn.execute("DELETE FROM messages.publish_stage_1 WHERE message = '1'")
    with pytest.raises(StageIncomplete, match=r"staged: 3; rows that are left: 2; .*Run the job again"):
        stage().publish(staged, run_id="job")
    conn.execute("DROP TABLE messages.publish_stage_1")
    with pytest.raises(StageIncomplete, match="staged: 3; rows that are left: 0;"):
        stage().publish(staged, run_id="job")
    assert bodies(conn) == []
    again = stage("again").put(0, rows(1))
    assert stage("again").publish([again], run_id="job")["published"] == 1


def test_a_server_that_crashes_empties_the_stage(conn: Connection, stage: NewStage) -> None:
    stage().put(0, rows(1))
    assert conn.execute("SELECT relpersistence FROM pg_class WHERE relname = 'publish_stage_1'").fetchone() == ("u",)


def test_of_two_drivers_of_one_run_one_publishes(
    conn: Connection, connect: Connect, queue: Queue, stage: NewStage
) -> None:
    queue()
    first, second = stage("first").put(0, rows(1)), stage("second").put(0, rows(1))
    winner = {"partition": 0, "attempt": first.attempt, "rows": 1}
    slow = connect(autocommit=False)
    slow.execute("SELECT messages.publish_staged('first', 'run', %s, 'orders')", [json.dumps([winner])])
    with ThreadPoolExecutor() as pool:
        other = pool.submit(stage("second").publish, [second], run_id="run")
        until_waiting(conn, "wait_event_type = 'Lock'")
        slow.commit()
        assert other.result() == {"rows": 1, "published": 1, "duplicates": 0, "repeated": True}
    assert (bodies(conn), stages(conn)) == ([1], 0)


def test_a_commit_whose_connection_breaks_is_asked_for_again(
    conn: Connection, connect: Connect, queue: Queue, stage: NewStage
) -> None:
    queue()
    staged = stage().put(0, rows(1))
    conn.execute("SELECT messages.begin_run('run', 'publish')")
    blocker = connect(autocommit=False)
    blocker.execute("SELECT FROM messages.pipeline_run FOR UPDATE")
    with ThreadPoolExecutor() as pool:
        done = pool.submit(stage().publish, [staged], run_id="run")
        until_waiting(conn, "wait_event_type = 'Lock'")
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        blocker.commit()
        assert done.result()["published"] == 1
    assert bodies(conn) == [1]


def test_an_empty_job_is_a_run_too(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    empty = stage().put(0, iter(()))
    assert stage().publish([empty], run_id="run")["rows"] == 0
    staged = stage().put(0, rows(1))
    assert stage().publish([staged], run_id="run")["repeated"]
    assert (bodies(conn), stages(conn)) == ([], 0)


def test_a_published_run_is_not_staged_again(dsn: str, conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    assert stage().open("run")
    stage().publish([stage().put(0, rows(1))], run_id="run")
    assert not stage().open("run")
    assert stages(conn) == 0


def test_the_name_of_a_run_that_has_published_is_refused_for_another_queue(
    session: SparkSession, dsn: str, conn: Connection, queue: Queue, stage: NewStage
) -> None:
    def begin(name: str | None) -> None:
        schema = StructType.fromDDL(MESSAGE if name else f"{MESSAGE}, queue_name string")
        given = {"runId": "nightly"} | ({"queue": name} if name else {})
        PublishWriter(Database(dsn), PublishOptions.of(given, schema, overwrite=False)).abort([])

    queue("orders")
    begin(queue("bills"))
    begin("orders")  # the run has published nothing yet
    stage().publish([stage().put(0, rows(1))], run_id="nightly")
    begin("orders")
    for other, said in {"bills": "queue 'bills'", None: "the queues that its rows name"}.items():
        fix = f"run 'nightly' has published to queue 'orders', not to {said}. Give each run a name of its own."
        with pytest.raises(InvalidArgument, match=re.escape(fix)):
            begin(other)
    assert bodies(conn) == [1]


# What cannot be published ---------------------------------------------------------------------------------------------


BAD_ROWS: list[tuple[dict[str, Any], type[PgQueueError], str]] = [
    ({"message": '{"canary"'}, InvalidMessage, "invalid input syntax for type json"),
    ({"message": '{"canary": "\\u0000"}'}, InvalidMessage, "unsupported Unicode escape sequence"),
    ({"message": "canary\0"}, InvalidArgument, "a text in it has a NUL"),
    ({"reference": "canary\0"}, InvalidArgument, "a text in it has a NUL"),
    (
        {"visible_at": pa.scalar(-63_500_000_000_000_000, pa.timestamp("us", "UTC"))},
        InvalidArgument,
        "its visible_at or expires_at is too",
    ),
    ({"message": None, "reference": "canary"}, InvalidMessage, "its message is NULL"),
    ({"queue_name": None}, InvalidArgument, "its queue_name is NULL"),
    ({"reference": 2601 * "x"}, InvalidArgument, "its reference is too long"),
    ({"headers": '["canary"]'}, InvalidArgument, "its headers are not a JSON object"),
    ({"topic": "canary canary"}, InvalidArgument, "its topic is not valid"),
    ({"group_key": ""}, InvalidArgument, "its group_key is empty or too long"),
    ({"dedup_key": 256 * "x"}, InvalidArgument, "its dedup_key is empty or too long"),
    ({"priority": 10}, InvalidArgument, "its priority is out of range"),
]


def test_a_bad_row_is_named_by_its_number_alone(conn: Connection, stage: NewStage) -> None:
    for row, error, why in BAD_ROWS:
        others = {name: value for name, value in row.items() if name != "message"}
        good = {name: ["orders" if name == "queue_name" else None] for name in others}
        bad = rows(row.get("message", '"canary\\nCOPY x, line 99"'), **{name: [others[name]] for name in others})
        batches = (batch for given in (rows("1\n", **good), rows(2, **good), bad) for batch in given)
        with pytest.raises(error, match=f"row 3 of partition 7 cannot be published: .*{why}") as refused:
            stage().put(7, batches)
        assert "canary" not in "".join(traceback.format_exception(refused.value))
        assert conn.execute("SELECT FROM messages.publish_stage_1").rowcount == 0


def test_what_the_queue_does_not_take_publishes_nothing(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue("small", max_body_bytes=5000)
    for name, error in (
        ("small", MessageTooLarge),
        ("nowhere", QueueNotFound),
        ("", QueueNotFound),
    ):
        job = stage(f"to {name}", queue_name=None)
        staged = job.put(0, rows(1, 2, {"text": 6000 * "x"}, queue_name=3 * [name]))
        with pytest.raises(error):
            job.publish([staged], run_id=f"to {name}")
        job.drop()
    assert (bodies(conn), stages(conn)) == ([], 0)
    assert conn.execute("SELECT FROM messages.pipeline_run").rowcount == 0


def test_the_longest_reference_of_a_stage_is_published_and_archived(
    conn: Connection, queue: Queue, stage: NewStage
) -> None:
    reference = secrets.token_urlsafe(1950)
    assert len(reference) == 2600
    queue()
    staged = stage().put(0, rows(1, reference=[reference]))
    stage().publish([staged], run_id="job")
    assert conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders')").rowcount == 1
    assert conn.execute("SELECT reference FROM messages.message_archive").fetchall() == [(reference,)]


MESSAGE = "message string"


@pytest.mark.parametrize(
    ("schema", "options", "why"),
    [
        ("body string", {}, "no column message.*to_json"),
        ("message struct<id:int>", {}, r"message is of type struct<id:int>.*to_json"),
        ("message string, group_kye string", {}, "column 'group_kye' is unknown"),
        ("message string, visible_at string", {}, "visible_at is of type string. Cast it to timestamp"),
        ("message string, queue_name string", {}, "the queue is not clear"),
        ("message string, QUEUE_NAME string", {}, "the queue is not clear"),
        ("message string, reference string, Reference string", {}, "two columns reference, which differ in case only"),
        (MESSAGE, {"queue": None}, "the queue is not clear"),
        (MESSAGE, {"dedupWindow": "1 hour"}, "dedupWindow is given, and there is no column dedup_key"),
        (MESSAGE, {"maxConnections": "0"}, "maxConnections is '0'.*from 1 to 1000"),
        (MESSAGE, {"commitper": "partition"}, "no option 'commitper'. A write takes table, queue, runId, dedupWindow"),
        (MESSAGE, {"run_id": "backfill"}, "no option 'run_id'. A write takes table, queue, runId.*Did you mean runId?"),
        (MESSAGE, {"DEDUPWINDOWS": "1 hour"}, "Did you mean dedupWindow?"),
        (MESSAGE, {"zz": "1"}, "no option 'zz'.*maxConnections.$"),
        (MESSAGE, {"batchsize": "1000"}, "no option 'batchsize'.*maxConnections is how many tasks write at once"),
        (MESSAGE, {"numPartitions": "4"}, "no option 'numPartitions'.*Use maxConnections"),
        (MESSAGE, {"topic": "orders"}, "no option 'topic'.*Use queue, or a column topic"),
    ],
)
def test_options_and_columns_that_cannot_be_are_named_with_the_fix(
    session: SparkSession, schema: str, options: dict[str, str | None], why: str
) -> None:
    given = {name: value for name, value in ({"queue": "orders"} | options).items() if value is not None}
    with pytest.raises(InvalidArgument, match=why):
        PublishOptions.of(given, StructType.fromDDL(schema), overwrite=False)


def test_a_write_with_a_mistyped_option_is_refused(session: SparkSession) -> None:
    source = data_source(Database())
    messages = StructType.fromDDL(MESSAGE)
    with pytest.raises(InvalidArgument, match=r"Did you mean runId\?"):
        source({"queue": "orders", "run_id": "backfill"}).writer(messages, overwrite=False)
    with pytest.raises(InvalidArgument, match=r"option table is 'archive'\. Give one of queue"):
        source({"queue": "orders", "table": "archive"}).writer(messages, overwrite=False)
    with pytest.raises(InvalidArgument, match="there is no option 'max_connections'"):
        source({"queue": "orders", "max_connections": "1"}).streamWriter(messages, overwrite=False)
    with pytest.raises(InvalidArgument, match=r"option table is 'archive'\. Give one of queue"):
        source({"queue": "orders", "table": "archive"}).streamWriter(messages, overwrite=False)


def test_a_window_that_is_none_is_refused_before_anything_is_staged(dsn: str, conn: Connection, queue: Queue) -> None:
    queue()
    schema = StructType.fromDDL(f"{MESSAGE}, dedup_key string")
    for window in ("1 hors", "0 seconds", "400 days", "-1 hour", "a\0"):
        options = PublishOptions.of({"queue": "orders", "dedupWindow": window}, schema, overwrite=False)
        for writer in (PublishWriter, PublishStreamWriter):
            with pytest.raises(InvalidArgument, match=r"option dedupWindow is .* such as 1 hour"):
                writer(Database(dsn), options)
    assert stages(conn) == 0


def test_a_stream_outlives_an_outage_and_is_refused_at_its_start(
    session: SparkSession, cluster: Cluster, dsn: str, conn: Connection, queue: Queue, tmp_path: Path
) -> None:
    queue()
    log, refusal = cluster.directory / "server.log", 'role "shop" is not permitted to log in'
    numbers(session).write.parquet(str(tmp_path / "in"))
    arriving = session.readStream.schema(MESSAGE).parquet(str(tmp_path / "in"))
    with logins(dsn) as login:
        login("shop", "messages_publisher")
        register(session, make_conninfo(dsn, user="shop"))
        stream = arriving.writeStream.format("pgqueue").option("queue", "orders")
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            until(lambda: len(bodies(conn)) == 10)
            conn.execute("ALTER ROLE shop NOLOGIN")
            session.sql("SELECT '10' AS message").write.mode("append").parquet(str(tmp_path / "in"))
            until(lambda: not query.isActive or refusal in log.read_text(), what="a task that is refused")
            assert query.exception() is None
            conn.execute("ALTER ROLE shop LOGIN")
            until(lambda: len(bodies(conn)) == 11)
            assert query.exception() is None
        finally:
            query.stop()
        conn.execute("ALTER ROLE shop NOLOGIN")
        stream = arriving.writeStream.format("pgqueue").option("queue", "others").trigger(availableNow=True)
        began = time.monotonic()
        with pytest.raises(Exception, match="not permitted to log in"):
            stream.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination()
        assert time.monotonic() - began < 30


# Roles ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def team(dsn: str, conn: Connection, queue: Queue) -> Iterator[Team]:
    """Stages of a role that is limited to the queue orders, and of one that is limited to bills."""
    with logins(dsn) as login:
        for name, queue_name in (("team_orders", queue("orders")), ("team_bills", queue("bills"))):
            login(name).close()
            conn.execute("SELECT messages.grant_queue(%s, %s, 'publish')", [queue_name, name])
        yield lambda name: Stage(Database(make_conninfo(dsn, user=name)), "job")


def test_a_team_publishes_to_its_own_queue_only(conn: Connection, team: Team) -> None:
    orders = team("team_orders")
    with pytest.raises(PermissionDenied, match="no privilege to publish on queue 'bills'"):
        replace(orders, queue_name="bills").open()
    foreign = orders.put(0, rows(1, 2, queue_name=["orders", "bills"]))
    with pytest.raises(PermissionDenied, match="on queue 'bills'"):
        orders.publish([foreign], run_id="foreign")
    assert bodies(conn) == []
    own = orders.put(0, rows(3))
    assert replace(orders, queue_name="orders").publish([own], run_id="own")["published"] == 1
    assert bodies(conn) == [3]


def test_teams_share_neither_stages_nor_runs(dsn: str, conn: Connection, team: Team) -> None:
    orders = replace(team("team_orders"), queue_name="orders")
    bills = replace(team("team_bills"), queue_name="bills")
    staged = orders.put(0, rows(1))
    with pytest.raises(StageIncomplete):
        bills.publish([staged], run_id="bills")
    bills.drop()
    with psycopg.connect(dsn, user="team_bills") as login:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute("INSERT INTO messages.publish_stage_1 (attempt, ordinal, message) VALUES (0, 0, '0')")
        login.rollback()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute("TABLE messages.publish_stage_1")
    orders.publish([staged], run_id="nightly")
    theirs = bills.put(0, rows(2))
    assert bills.publish([theirs], run_id="nightly") == {"rows": 1, "published": 1, "duplicates": 0}


# Connections ----------------------------------------------------------------------------------------------------------


def test_tasks_wait_for_one_of_the_slots(conn: Connection, stage: NewStage) -> None:
    two = stage(slots=2)
    with ThreadPoolExecutor() as pool, ExitStack() as busy:
        busy.enter_context(two._slot())
        with two._slot():
            waiting = pool.submit(two.put, 0, rows(1))
            until_waiting(conn, "application_name = 'pgqueue spark waiting'")
            assert not waiting.done()
            assert stage("another job", slots=1).put(0, rows(1)).rows == 1
            assert not waiting.done()
        assert waiting.result(timeout=20).rows == 1


def test_no_more_tasks_write_at_once_than_slots(conn: Connection, stage: NewStage) -> None:
    tasks = stage(slots=3)
    seen = []
    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(tasks.put, number, rows(*range(500))) for number in range(24)]
        while not all(task.done() for task in running):
            (number,) = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgqueue spark publish'"
            ).fetchone() or (0,)
            seen.append(number)
    assert sum(task.result().rows for task in running) == 12000
    assert 1 < max(seen) <= 3


def test_tasks_that_the_server_has_no_room_for_try_again(dsn: str, conn: Connection, team: Team) -> None:
    conn.execute("ALTER ROLE team_orders CONNECTION LIMIT 1")
    with ThreadPoolExecutor() as pool, psycopg.connect(dsn, user="team_orders"):
        refused = pool.submit(team("team_orders").put, 0, rows(1))
        with pytest.raises(TimeoutError):
            refused.result(timeout=0.5)
        conn.execute("ALTER ROLE team_orders CONNECTION LIMIT 2")
        assert refused.result(timeout=20).rows == 1


# Maintenance
# ---------------------------------------------------------------------------------------------------------------


def test_maintenance_drops_stages_of_dead_drivers_after_a_day_unless_a_task_writes(
    conn: Connection, connect: Connect, stage: NewStage
) -> None:
    for name in ("dead", "alive", "busy"):
        stage(name).put(0, rows(1))
    conn.execute(
        "UPDATE messages.publish_stage SET expires_at = expires_at - interval '25 hours' WHERE stage_id <> 'alive'"
    )
    task = connect(autocommit=False)
    task.execute("INSERT INTO messages.publish_stage_3 (attempt, ordinal, message) VALUES (0, 0, '0')")
    conn.execute("SELECT messages.maintain()")
    assert conn.execute("SELECT stage_id FROM messages.publish_stage ORDER BY 1").fetchall() == [("alive",), ("busy",)]
    task.commit()
    conn.execute("SELECT messages.maintain()")
    assert stages(conn) == 1
    conn.execute("UPDATE messages.publish_stage SET expires_at = clock_timestamp() + interval '1 second'")
    stage("alive").put(1, rows(2))
    assert conn.execute(
        "SELECT expires_at > clock_timestamp() + interval '23 hours' FROM messages.publish_stage"
    ).fetchall() == [(True,)]


def test_a_task_that_lost_does_not_hold_up_the_commit(
    conn: Connection, connect: Connect, queue: Queue, stage: NewStage
) -> None:
    queue()
    staged = stage().put(0, rows(1))
    loser = connect(autocommit=False)
    loser.execute("INSERT INTO messages.publish_stage_1 (attempt, ordinal, message) VALUES (0, 0, '0')")
    assert stage().publish([staged], run_id="run")["published"] == 1
    loser.commit()
    assert stages(conn) == 1
    conn.execute("SELECT messages.maintain()")
    assert stages(conn) == 0


# Streams --------------------------------------------------------------------------------------------------------------


def test_a_stream_remembers_its_last_batch_and_refuses_one_before(
    conn: Connection, queue: Queue, stage: NewStage
) -> None:
    queue()

    def commit(batch: int) -> dict[str, Any]:
        staged = stage().put(0, rows(batch))
        return stage().publish([staged], run_id="q", batch=batch)

    assert [commit(batch).get("repeated") for batch in (4, 5, 5, 6, 6)] == [None, None, True, None, True]
    with pytest.raises(InvalidArgument, match=r"has published batch 6, and is now given batch 5.*checkpoint"):
        commit(5)
    assert bodies(conn) == [4, 5, 6]
    assert conn.execute("SELECT run_id, summary -> 'batch' FROM messages.pipeline_run").fetchall() == [("q", 6)]


def test_a_stream_keeps_its_stage_from_batch_to_batch(conn: Connection, queue: Queue, stage: NewStage) -> None:
    queue()
    for batch in range(2):
        staged = stage().put(0, rows(batch))
        stage().put(0, rows(9))
        stage().publish([staged], run_id="q", batch=batch)
        assert conn.execute("SELECT FROM messages.publish_stage_1").rowcount == 0
    assert bodies(conn) == [0, 1]
    assert stages(conn) == 1
    conn.execute("UPDATE messages.publish_stage SET expires_at = clock_timestamp()")
    conn.execute("SELECT messages.maintain()")
    assert stages(conn) == 0


def test_a_replaced_driver_that_commits_its_batch_again_leaves_the_next_batch_in_the_stage(
    conn: Connection, queue: Queue, stage: NewStage
) -> None:
    queue()
    old = stage().put(0, rows(5))
    stage().publish([old], run_id="q", batch=5)
    new = stage().put(0, rows(6))
    assert stage().publish([old], run_id="q", batch=5)["repeated"]
    assert stage().publish([new], run_id="q", batch=6)["published"] == 1
    assert bodies(conn) == [5, 6]
    assert conn.execute("SELECT FROM messages.publish_stage_1").rowcount == 0


def test_a_stream_has_no_run_id(session: SparkSession, dsn: str) -> None:
    options = PublishOptions.of({"queue": "orders", "runId": "x"}, StructType.fromDDL(MESSAGE), overwrite=False)
    with pytest.raises(InvalidArgument, match="option runId is for batch writes"):
        PublishStreamWriter(Database(dsn), options)
