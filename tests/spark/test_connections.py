"""A server with fewer connections than Spark has tasks: the work is queued in those that have one, and none fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import ConnectionFailed, run, verbs
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark import drain, register
from airflow_provider_pgqueue.spark.pipelines.drain.task import Share
from airflow_provider_pgqueue.spark.source.read import RangeReader
from airflow_provider_pgqueue.spark.source.tables import table_of
from tests.core.roles.test_roles import logins
from tests.waiting import until

Connection = psycopg.Connection[Any]
EXECUTORS = 20
LIMIT = 6


@pytest.fixture
def narrow(dsn: str) -> Iterator[str]:
    """The database, for a role that may have six connections."""
    with logins(dsn) as login:
        login("narrow", "messages_pipeline", "messages_consumer").close()
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"ALTER ROLE narrow CONNECTION LIMIT {LIMIT}".encode())
        yield make_conninfo(dsn, user="narrow")


def publish(conn: Connection, messages: int, body: str = "") -> set[int]:
    return set(run(conn, verbs.publish_batch("orders", [body] * messages)))


def archived(conn: Connection) -> list[tuple[int, int]]:
    return conn.execute("SELECT id, attempts FROM messages.message_archive").fetchall()


def handle(messages: Any) -> None:
    """Take long enough for all executors to meet."""
    threading.Event().wait(0.05)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(EXECUTORS) as pool:
        return list(pool.map(work, range(EXECUTORS)))


def test_many_executors_drain_over_six_connections(
    narrow: str, conn: Connection, queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish(conn, 1000) if queue("orders") else set()
    share = Share(
        database=Database(narrow), queue="orders", function=handle, parallelism=EXECUTORS, batch_size=10,
        lease_for=None, max_messages=None, give_up_after=20, holder="run", stop_key=1,
    )  # fmt: skip
    # As if most had found no connection for a minute.
    monkeypatch.setattr(TUNING, "connection_patience", 0.5)
    reports = at_once(share.run)
    assert sum(reports, Counter())["success"] == 1000
    assert any(report == Counter() for report in reports)
    assert sorted(archived(conn)) == [(id_, 1) for id_ in sorted(published)]


def test_many_executors_read_over_six_connections(
    narrow: str, dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    # Four messages in a page, and 64 pages in each piece at least.
    published = publish(conn, 300 * EXECUTORS, "x" * 1800) if queue("orders") else set()
    options = {"table": "queue", "columns": "id", "numPartitions": str(EXECUTORS)}
    schema = table_of(options).spark_schema(["id"])
    # Planned while there was room for all.
    ranges = RangeReader(Database(dsn), options, schema).partitions()
    assert len(ranges) == EXECUTORS
    reader = RangeReader(Database(narrow), options, schema)
    found = at_once(lambda number: [id_ for b in reader.read(ranges[number]) for id_ in b.column("id").to_pylist()])
    assert sorted(id_ for some in found for id_ in some) == sorted(published)


def test_a_read_and_a_drain_are_cut_to_the_connections_that_are_free(
    narrow: str, session: SparkSession, conn: Connection, queue: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    published = publish(conn, 400) if queue("orders") else set()
    register(session, narrow)
    with psycopg.connect(narrow):  # somebody else
        reading = session.read.format("pgqueue").options(table="queue", columns="id", numPartitions=EXECUTORS).load()
        assert {row.id for row in reading.collect()} == published
        summary = drain(session, queue="orders", function=handle, dsn=narrow, parallelism=EXECUTORS, batch_size=10)
    assert summary["results"]["success"] == 400
    assert {attempts for _, attempts in archived(conn)} == {1}
    assert "the server has 4 connections free: the work of 20 tasks is queued in 2 tasks" in caplog.text


@pytest.mark.parametrize("limit", ["role", "database", "server"])
def test_the_room_is_what_the_narrowest_limit_leaves(narrow: str, dsn: str, conn: Connection, limit: str) -> None:
    if limit != "role":
        conn.execute("ALTER ROLE narrow CONNECTION LIMIT -1")
    ((name, others),) = conn.execute(
        "SELECT datname, numbackends FROM pg_stat_database WHERE datname = current_database()"
    ).fetchall()
    if limit == "database":
        conn.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 9".encode())

    def free() -> int:
        # Sessions of other databases come and go.
        ((server,),) = conn.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
            " - sum(numbackends)::int FROM pg_stat_database"
        ).fetchall()
        return int({"role": LIMIT, "database": 9 - others, "server": server}[limit])

    # One is the session that asks, and two are left.
    until(lambda: Database(narrow).room(9999) == free() - 3, what="the room")
    assert Database(narrow).room(1) == 1


def test_who_finds_no_connection_waits_for_one_and_says_so(narrow: str, caplog: pytest.LogCaptureFixture) -> None:
    held = [psycopg.connect(narrow) for _ in range(LIMIT)]

    def release_one() -> None:
        until(lambda: "no connection yet, trying for up to 60 s: " in caplog.text)
        held[0].close()

    with ThreadPoolExecutor() as pool:
        released = pool.submit(release_one)
        try:
            for opened in (Database(narrow).connect(), Database(narrow).arrow()):
                with opened:
                    pass
            released.result()
        finally:
            for one in held:
                one.close()
    assert any('too many connections for role "narrow"' in message for message in caplog.messages)


def test_a_driver_that_is_refused_for_another_reason_does_not_wait(narrow: str) -> None:
    with pytest.raises(ConnectionFailed, match='role "nobody" does not exist'):
        Database(make_conninfo(narrow, user="nobody")).connect()


def test_a_drain_without_a_free_connection_fails_before_it_leases(
    narrow: str, session: SparkSession, conn: Connection, queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(conn, 5) if queue("orders") else set()
    monkeypatch.setattr(TUNING, "connection_patience", 0.5)
    held = [psycopg.connect(narrow) for _ in range(LIMIT)]
    try:
        with pytest.raises(ConnectionFailed, match="too many connections"):
            drain(session, queue="orders", function=handle, dsn=narrow)
    finally:
        for one in held:
            one.close()
    assert conn.execute("SELECT sum(attempts) FROM messages.message").fetchone() == (0,)
